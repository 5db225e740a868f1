//! The kind of a file system: what is known of it.

use std::{path::Path, time::Duration};

use lockcore::{Finding, Severity};

/// The kind of a file system.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    /// For `doctor`; `None` if nothing is known.
    pub(crate) finding: Option<Finding>,
    /// Set if no other host changes what this one has in a cache.
    pub(crate) is_local: bool,
    /// The time for which a client may believe that there is no file of a name, whatever is asked of it.
    pub(crate) absence: Duration,
}

/// The kind of which nothing is known.
pub(crate) const UNKNOWN: Kind = Kind { finding: None, is_local: false, absence: Duration::ZERO };

/// Returns the kind of the file system of a folder. That may ask the server.
#[cfg(target_os = "linux")]
pub(crate) fn of(folder: &Path) -> Kind {
    // As `linux/magic.h` and the documents of those that are not in it have them.
    const LOCAL: [(u32, &str); 6] = [
        (0xef53, "ext4"),
        (0x5846_5342, "XFS"),
        (0x9123_683e, "Btrfs"),
        (0x0102_1994, "tmpfs"),
        (0x794c_7630, "overlayfs"),
        (0x2fc1_2fc1, "ZFS"),
    ];
    const SMB: [u32; 2] = [0xff53_4d42, 0xfe53_4d42];
    const NFS: u32 = 0x6969;
    const FUSE: u32 = 0x6573_5546;
    // They date a file by the host that writes it.
    const CLUSTERED: [(u32, &str); 5] = [
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
    ];
    let Ok(seen) = rustix::fs::statfs(folder) else { return UNKNOWN };
    let kind = seen.f_type as u32;
    let among =
        |all: &[(u32, &'static str)]| all.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name);
    let (severity, detail) = match (among(&LOCAL), among(&CLUSTERED)) {
        (Some(name), _) => {
            (Severity::Ok, format!("{name}: a disk of this host, unless it is exported to others"))
        }
        (_, Some(name)) => {
            let clocks = "it dates files by the clocks of its hosts, which have to agree to a second";
            (Severity::Warning, format!("{name}: it was not tried, and {clocks}"))
        }
        _ if kind == NFS => (Severity::Warning, "NFS: it was not tried".to_owned()),
        _ if SMB.contains(&kind) => (Severity::Warning, "SMB: it was not tried".to_owned()),
        _ if kind == FUSE => {
            let others = "with `writeback_cache` files are dated by the clocks of the hosts";
            (Severity::Warning, format!("FUSE: of those only sshfs was tried; {others}"))
        }
        _ => (Severity::Warning, format!("unknown ({kind:#x}): it was not tried")),
    };
    // The client of SMB looks for a name again after a second.
    let absence = if SMB.contains(&kind) { Duration::from_millis(1_100) } else { Duration::ZERO };
    let finding = Some(Finding { severity, check: "file system", detail });
    Kind { finding, is_local: among(&LOCAL).is_some(), absence }
}

/// Returns nothing: there is no portable way to ask.
#[cfg(not(target_os = "linux"))]
pub(crate) fn of(_folder: &Path) -> Kind {
    UNKNOWN
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_tried_is_a_warning() {
        let of_proc = of(Path::new("/proc")).finding.expect("it is mounted");
        assert_eq!(of_proc.severity, Severity::Warning, "{of_proc:?}");
        assert!(of_proc.detail.contains("0x9fa0"), "{of_proc:?}");
        assert_eq!(of(Path::new("/no such folder")).finding, None);
    }
}
