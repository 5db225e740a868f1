#!/usr/bin/env bash
# Fails, with file and line, if a comment begins with a question word used as a noun ("Whether ..", "How long .."):
# a field's comment begins with its noun, a function's with its verb.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
found=$(for file in $(grep -rlE '^\s*//' --include='*.rs' lockcore/src backend-*/src lockctl/src | sort); do
    # The doc comments of the arguments are what `lockctl --help` prints.
    [ "$file" = lockctl/src/args.rs ] && continue
    awk -v file="$file" '
        /^[ \t]*\/\/[\/!]? (What|For how|After how|By how|Whether|How (long|many|much|far|often))([^a-z]|$)/ && !after {
            sub(/^[ \t]*/, "")
            print file ":" FNR ": " $0
        }
        { after = /^[ \t]*\/\// }' "$file"
done)
[ -z "$found" ] && exit
printf '%s\n' "$found" "Begin these comments with a noun or a verb (CONTRIBUTING.md, Style)." >&2
exit 1
