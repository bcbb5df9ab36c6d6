#!/bin/sh
# Installs the Debian packages that the tests with real brokers need.
#
# As root it installs what is missing; otherwise it prints the command to run and exits 1.
# When nothing is missing it changes nothing and exits 0. No service is started or stopped:
# the tests start every broker themselves, on ephemeral ports and in temporary folders.
set -eu

POLICY=/usr/sbin/policy-rc.d
POLICY_MARK='isthmus install-test-deps'

# Package names that must be installed as such.
wanted='mosquitto rabbitmq-server activemq libmqtt-client-java ejabberd iproute2'

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    echo "install-test-deps: this is not a Debian system. Install the equivalents of:" >&2
    echo "  $wanted nodejs npm maven and a Java development kit (17 or newer)" >&2
    exit 1
fi

missing=''
installed=" $(dpkg-query -W -f '${db:Status-Status}=${Package} ' 2>/dev/null)"
for package in $wanted; do
    case "$installed" in
        *" installed=$package "*) ;;
        *) missing="$missing $package" ;;
    esac
done

# Tools that may as well have come from elsewhere than Debian: wanted on PATH only.
on_path() { command -v "$1" >/dev/null 2>&1; }
on_path node || missing="$missing nodejs"
on_path npm || missing="$missing npm"
on_path mvn || missing="$missing maven"
{ on_path java && on_path javac; } || missing="$missing default-jdk-headless"

if [ -z "$missing" ]; then
    echo "install-test-deps: everything is installed"
    exit 0
fi

if [ "$(id -u)" -ne 0 ]; then
    echo "install-test-deps: missing:$missing" >&2
    echo "Run as root:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends$missing" >&2
    exit 1
fi

# Keep the packages' own scripts from starting services. A policy that somebody else put
# there is respected; one that an interrupted run of this script left behind is ours.
if [ ! -e "$POLICY" ] || grep -q "$POLICY_MARK" "$POLICY"; then
    trap 'rm -f "$POLICY"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    printf '#!/bin/sh\n# %s: no service is started during installation\nexit 101\n' \
        "$POLICY_MARK" >"$POLICY"
    chmod 755 "$POLICY"
fi

export DEBIAN_FRONTEND=noninteractive
echo "install-test-deps: installing$missing" >&2
apt-get update -q
# shellcheck disable=SC2086 # one word per package
apt-get install -q -y --no-install-recommends $missing
if [ -d /run/systemd/system ]; then
    echo "install-test-deps: the brokers' services were not started, but Debian enables them" >&2
    echo "for the next boot; 'systemctl disable mosquitto rabbitmq-server activemq ejabberd'" >&2
    echo "undoes that if you do not want them." >&2
fi
