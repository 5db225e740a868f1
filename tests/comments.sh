#!/usr/bin/env bash
# Fails, with file and line, if a comment begins with a question word used as a noun ("Whether ..", "How long .."), or a doc comment
# with "How ..", "That ..", "Why ..", "On what .." or a bare "The same": a field's comment begins with its noun, a function's with
# its verb.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Every crate of the top level but that of the tests.
GLOBIGNORE=tests/src
found=$(for file in $(grep -rlE '^\s*//' --include='*.rs' */src | sort); do
    # The doc comments of the arguments are what `lockctl --help` prints.
    [ "$file" = lockctl/src/args.rs ] && continue
    awk -v file="$file" '
        BEGIN {
            noun = "(What|For how|After how|By how|Whether|How (long|many|much|far|often))"
            headless = "(How|That|Why|On (what|which)|The same( (for|with|where|when|if|though|unless|as|to|of|in|on|at|by|from|since|after|but|and|or)|[.,;:]|$))"
            comment = "^[ \t]*//[/!]? " noun "([^a-z]|$)"
            doc = "^[ \t]*/// " headless "([^a-z]|$)"
        }
        !after && ($0 ~ comment || $0 ~ doc) {
            line = $0
            sub(/^[ \t]*/, "", line)
            print file ":" FNR ": " line
        }
        { after = /^[ \t]*\/\// }' "$file"
done)
[ -z "$found" ] && exit
printf '%s\n' "$found" "Begin these comments with a noun or a verb (CONTRIBUTING.md, Style)." >&2
exit 1
