#!/bin/sh
# Installs valgrind, which counts the instructions of the hit path, if it is missing.
command -v valgrind >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "no valgrind: install it to count instructions (Debian: apt-get install valgrind)" >&2
  exit 1
fi
echo "installing valgrind to count instructions"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get -qq install -y valgrind >/dev/null; }
install 2>/dev/null || { apt-get -qq update && install; }
