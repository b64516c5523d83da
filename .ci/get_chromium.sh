#!/bin/sh
# Installs Chromium, in which the report's page is tested, if it is missing. It is no error if that is impossible: the tests
# are then skipped with a message, or fail if CI is set.
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "no Chromium: install it for the tests of the report's page"
  exit 0
fi
echo "installing Chromium for the tests of the report's page"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; }
install 2>/dev/null || { apt-get -qq update && install; } || echo "Chromium could not be installed"
