#!/bin/sh
# Installs the browser that the report's page is tested in, if it is missing and can be installed. It is no error if not:
# the tests then say that they are skipped, or fail where CI is set.
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
