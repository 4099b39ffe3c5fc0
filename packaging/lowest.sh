#!/bin/sh
# Runs quick tests with the oldest release of each dependency that pyproject.toml allows, on the oldest
# Python: packaging/lowest.sh DIRECTORY [WORDS FOR PYTEST]. DIRECTORY becomes a virtual environment.
# It needs uv, which the dependency group "release" has.
set -eu
cd "$(dirname "$0")/.."
directory=$1
shift
uv venv --clear --python 3.11 "$directory"
export VIRTUAL_ENV="$directory"
uv pip install --resolution lowest-direct --editable '.[all,java]'
uv pip install --group test # what is installed stays as old as it is
[ $# -gt 0 ] || set -- -q -m 'not slow' tests/core tests/queue tests/table tests/lumberjack tests/umq
exec "$directory/bin/python" -m pytest "$@"
