"""scripts/install-system.sh, with stand-ins for `id`, `apt-get`, `dpkg-deb` and `systemctl`. Nothing is installed here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "install-system.sh"
TOOLS = ("cat", "chmod", "dirname", "head", "mkdir", "mktemp", "mv", "rm", "sed", "sh", "tail")
# Installs what it is asked for, and notes whether a service may start meanwhile.
APT_GET = """#!/bin/sh
printf 'apt-get %s\\n' "$*" >>"$LOG"
if "$POLICY_RC_D"; then echo 'services may start'; else echo "services: $?"; fi >>"$LOG"
"""
# Downloads a file that the next one "unpacks": a Valkey that starts.
APT_GET_DOWNLOAD = """#!/bin/sh
printf 'apt-get %s\\n' "$*" >>"$LOG"
case "$*" in
    'update --print-uris') echo "'http://mirror.invalid/debian/dists/bookworm/InRelease' file 0" ;;
    download*) : >valkey.deb; cat "${APT_CONFIG%/*}/sources.list" >>"$LOG" ;;
esac
"""
DPKG_DEB = """#!/bin/sh
mkdir -p "$3/usr/bin"
printf '#!/bin/sh\\n' >"$3/usr/bin/valkey-server"
chmod 755 "$3/usr/bin/valkey-server"
"""
SYSTEMCTL = """#!/bin/sh
printf 'systemctl %s\\n' "$*" >>"$LOG"
"""


class Machine:
    """A PATH with a few tools, a user id, and stand-ins that write a log. Programs of /usr/bin are not on it."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.policy = folder / "policy-rc.d"
        self.valkey = folder / "cache" / "valkey"
        self._release = folder / "os-release"
        self.release("trixie")
        self._log = folder / "log"
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))

    def program(self, name: str, text: str = "#!/bin/sh\n") -> None:
        (self.bin / name).write_text(text, encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def user(self, number: int) -> None:
        self.program("id", f"#!/bin/sh\necho {number}\n")

    def release(self, name: str) -> None:
        self._release.write_text(f"ID=debian\nVERSION_CODENAME={name}\n", encoding="utf-8")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), "LOG": str(self._log), "POLICY_RC_D": str(self.policy)}
        environment |= {"OS_RELEASE": str(self._release), "VALKEY_FOLDER": str(self.valkey)}
        command = [str(self.bin / "sh"), str(SCRIPT), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def log(self) -> list[str]:
        return self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_is_missing(machine: Machine) -> None:
    """Then neither root nor a package manager is needed."""
    machine.program("caddy")
    done = machine.run("caddy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_without_root_everything_missing_is_listed_at_once(machine: Machine, options: list[str]) -> None:
    """One message names all programs and one command that installs them."""
    machine.user(1000)
    machine.program("apt-get", APT_GET)
    machine.program("chromium")
    done = machine.run(*options, "caddy", "redis-server", "valkey-server", "chromium", "wrk")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "install-system: only root can install programs.",
        "install-system: missing programs: caddy redis-server valkey-server wrk",
        "install-system: install all of them with: sudo sh scripts/install-system.sh caddy redis-server valkey-server wrk",
    ]
    assert machine.log() == []


def test_without_apt_get_the_packages_are_listed(machine: Machine) -> None:
    """Somebody with another package manager can look for the same packages there."""
    machine.user(0)
    done = machine.run("caddy", "chromium", "wrk")
    assert done.returncode == 1
    assert "with your package manager; the packages of Debian are: caddy chromium wrk\n" in done.stderr


def test_check_installs_nothing(machine: Machine) -> None:
    """Root could install it: that is all that is asked."""
    machine.user(0)
    machine.program("apt-get", APT_GET)
    assert machine.run("--check", "caddy", "wrk").returncode == 0
    assert machine.log() == []


def test_services_are_neither_started_nor_enabled(machine: Machine) -> None:
    """Packages are installed under a policy that forbids services to start; it is removed afterwards."""
    machine.user(0)
    machine.program("apt-get", APT_GET)
    machine.program("systemctl", SYSTEMCTL)
    done = machine.run("redis-server", "wrk", "caddy")
    assert (done.returncode, done.stdout) == (0, "install-system: installing redis-server wrk caddy\n")
    assert machine.log() == [
        "apt-get install -y -q --no-install-recommends redis-server wrk caddy",
        "services: 101",
        "systemctl disable redis-server",
        "systemctl disable caddy",
    ]
    assert not machine.policy.exists()


def test_policy_of_the_machine_stays(machine: Machine) -> None:
    """Images have a policy of their own."""
    machine.user(0)
    machine.program("apt-get", APT_GET)
    machine.policy.write_text("#!/bin/sh\nexit 104\n", encoding="utf-8")
    machine.policy.chmod(0o755)
    assert machine.run("wrk").returncode == 0
    assert machine.log()[1] == "services: 104"
    assert machine.policy.read_text(encoding="utf-8") == "#!/bin/sh\nexit 104\n"


def test_policy_is_removed_when_the_installation_fails(machine: Machine) -> None:
    """A failure leaves nothing behind, and shows what apt-get printed last."""
    machine.user(0)
    machine.program("sleep")
    machine.program("apt-get", "#!/bin/sh\necho 'E: no such package'\nexit 100\n")
    done = machine.run("wrk")
    assert done.returncode == 1
    assert done.stderr.splitlines()[:2] == ["E: no such package", "install-system: apt-get could not install it."]
    assert not machine.policy.exists()


def test_debian_12_has_valkey_in_its_backports(machine: Machine) -> None:
    """There it is unpacked: without root, and without a change to the system or to the configuration of apt."""
    machine.user(1000)
    machine.release("bookworm")
    machine.program("apt-get", APT_GET_DOWNLOAD)
    machine.program("dpkg-deb", DPKG_DEB)
    assert machine.run("--check", "valkey-server").returncode == 0
    assert machine.log() == []
    done = machine.run("valkey-server")
    assert done.returncode == 0, done.stderr
    assert (machine.valkey / "usr" / "bin" / "valkey-server").is_file()
    assert machine.log() == [
        "apt-get update --print-uris",
        "apt-get update",
        "apt-get download valkey-server valkey-tools",
        "deb http://mirror.invalid/debian bookworm-backports main",
    ]
    assert machine.run("valkey-server").returncode == 0
    assert len(machine.log()) == 4, "it is there already"


def test_valkey_that_cannot_be_unpacked(machine: Machine) -> None:
    """The message names what is missing, and what to do."""
    machine.user(0)
    machine.release("bookworm")
    machine.program("apt-get", "#!/bin/sh\nexit 100\n")
    done = machine.run("valkey-server")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "install-system: missing programs: valkey-server",
        "install-system: install all of them by hand, so that they are on the PATH",
    ]
