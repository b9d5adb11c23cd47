#!/bin/sh
# Runs the command it is given: `train` when there is none, and options alone are options of `train`.
# exec, so that the command is process 1 and gets the platform's signals.

# An unknown uid has / as its home, and a read-only root makes any home unwritable.
[ -w "${HOME:-/}" ] || export HOME=/tmp

[ $# -gt 0 ] || set -- train
case $1 in
  -*) set -- train "$@" ;;
esac
exec "$@"
