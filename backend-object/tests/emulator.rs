//! The conformance suite on emulators of S3, over a real connection.

use lockcore_conformance::servers::{Trial, checks};

use crate::place::{Bucket, ministack, moto};

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let on_ministack = checks("s3", || async { Ok(Bucket::at(ministack().await?)) });
    let on_moto = checks("moto", || async { Ok(Bucket::at(moto().await?)) });
    // It shows what the first emulator does, and takes longer.
    on_ministack.chain(on_moto.map(Trial::thorough))
}
