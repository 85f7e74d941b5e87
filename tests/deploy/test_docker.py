"""deploy/docker: the image copies what is there and starts what exists, its check of health works, and Compose's file
is one. The image itself is not built here: that needs a daemon."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from breakloop.admin.app import AllowedHosts
from breakloop.cli.doctor import judge
from breakloop.cli.init import texts
from breakloop.cli.main import run as breakloop
from breakloop.config.loader import load_settings
from breakloop.store.redis.url import parse_redis_url
from tests.deploy.command_lines import wrong_with
from tests.deploy.tools import DEPLOY, ROOT, run, tool, yaml_documents
from tests.e2e.served import serving
from tests.redis_servers import running

DOCKER = DEPLOY / "docker"
COMPOSE = DOCKER / "compose.yaml"
GATEWAYS = ("gateway-1", "gateway-2")


def instructions() -> list[tuple[str, str]]:
    """The lines of the Dockerfile: word and rest, continued lines as one."""
    text = re.sub(r"^\s*#.*\n", "", (DOCKER / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def of(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def variables() -> dict[str, str]:
    """What the image sets."""
    return dict(word.split("=", 1) for rest in of("ENV") for word in shlex.split(rest))


def health_check() -> list[str]:
    found: list[str] = json.loads(of("HEALTHCHECK")[0].partition(" CMD ")[2])
    assert found[0] == "python"
    return [sys.executable, *found[1:]]


def test_what_is_copied_is_there_and_is_sent_to_the_builder() -> None:
    """A file that .dockerignore keeps back, or that moved, would fail only when somebody builds."""
    allowed = {line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = {source for rest in of("COPY") if "--from" not in rest for source in rest.split()[:-1]}
    assert copied == allowed == {"requirements/runtime.txt", "pyproject.toml", "README.md", "LICENSE", "src"}
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_image_is_pinned_small_and_without_rights() -> None:
    """A base by tag, the same for both stages; not root, and by number, so that Kubernetes can tell."""
    bases = [rest.split()[0] for rest in of("FROM")]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", bases[0])
    assert of("USER") == ["10001:10001"]
    assert of("STOPSIGNAL") == ["SIGTERM"]
    assert of("VOLUME") == ["/var/lib/breakloop"]


def test_it_starts_what_exists() -> None:
    """Entry point and command are a command line of ours; its settings are valid, and agree with the port (X-3)."""
    words = [*json.loads(of("ENTRYPOINT")[0]), *json.loads(of("CMD")[0])]
    assert words[0] == "breakloop"
    assert wrong_with(words[1:]) == ""
    settings = load_settings(
        env={name: value for name, value in variables().items() if name.startswith("BREAKLOOP_")}
    ).settings
    assert (settings.host, settings.data_dir, settings.log_format) == ("0.0.0.0", of("VOLUME")[0], "json")
    assert (settings.admin_host, settings.admin_port) == ("0.0.0.0", 8788)
    assert of("EXPOSE") == [f"{settings.port} {settings.admin_port}"]


@pytest.mark.e2e
def test_the_linter_finds_nothing() -> None:
    """hadolint, with the shell's linter in it."""
    done = run(tool("hadolint"), str(DOCKER / "Dockerfile"))
    assert done.returncode == 0, done.stdout


@pytest.mark.e2e
def test_the_linter_finds_something(tmp_path: Path) -> None:
    """The check can fail."""
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /opt && pip install breakloop\n")
    assert "DL3006" in run(tool("hadolint"), str(tmp_path / "Dockerfile")).stdout


@pytest.mark.e2e
def test_the_health_check_tells_ready_from_not_ready(tmp_path: Path) -> None:
    """0 where `/readyz` says 200; 1 without a bundle, and without a process (D-5)."""
    with serving(tmp_path, "--policy", str(DOCKER / "policy")) as served:
        environment = {"BREAKLOOP_PORT": str(served.port)}
        assert subprocess.run(health_check(), env=environment, check=False).returncode == 0
    assert subprocess.run(health_check(), env=environment, check=False, stderr=subprocess.DEVNULL).returncode == 1


class _NotReady(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.mark.e2e
def test_the_health_check_fails_on_503() -> None:
    """An instance that answers, but has no bundle or is shutting down (D-5)."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _NotReady) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        environment = {"BREAKLOOP_PORT": str(server.server_address[1])}
        assert subprocess.run(health_check(), env=environment, check=False).returncode == 1
        server.shutdown()


# -- Compose ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    (document,) = yaml_documents(COMPOSE.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def test_the_instances_have_valid_settings(compose: dict[str, Any]) -> None:
    """With a Redis, a secret and a policy that is mounted; they are waited for when they stop (T-1)."""
    for name in GATEWAYS:
        service = compose["services"][name]
        assert "command" not in service  # the image's own
        settings = load_settings(env=given(service)).settings
        assert any(volume.split(":")[1] == settings.policy for volume in service["volumes"])
        assert settings.state.startswith("redis://:s3cr3t")
        assert settings.secret.get_secret_value()
        wait_s = float(service["stop_grace_period"].removesuffix("s"))
        assert wait_s > settings.shutdown_grace_seconds + 3


def test_each_instance_has_a_data_directory_of_its_own(compose: dict[str, Any]) -> None:
    """Two processes on one data directory would be one too many (S-1)."""
    volumes = [volume.split(":") for name in GATEWAYS for volume in compose["services"][name]["volumes"]]
    data = [volume[0] for volume in volumes if volume[1] == of("VOLUME")[0]]
    assert len(set(data)) == len(data) == 2
    assert set(data) < set(compose["volumes"])


def test_what_is_mounted_is_there(compose: dict[str, Any]) -> None:
    """A missing file would be made by Docker, as an empty folder."""
    mounted = [volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]]
    files = [name for name in mounted if name.startswith(".")]
    assert len(files) == 4
    assert [name for name in files if not (DOCKER / name).exists()] == []
    assert re.findall(r"^server (\S+):8787 ", (DOCKER / "instances.conf").read_text(), re.MULTILINE) == list(GATEWAYS)


def test_nginx_is_believed_and_redis_is_out_of_reach(compose: dict[str, Any]) -> None:
    """The trusted network is the one that nginx is in; only the instances reach Redis; only nginx is open (C-4)."""
    services, networks = compose["services"], compose["networks"]
    trusted = services["gateway-1"]["environment"]["BREAKLOOP_TRUSTED_PROXIES"]
    assert networks["front"]["ipam"]["config"] == [{"subnet": trusted}]
    assert networks["back"] == {"internal": True}
    behind = {name for name, service in services.items() if "back" in service["networks"]}
    assert behind == {*GATEWAYS, "redis", "postgres"}
    assert {name: service["ports"] for name, service in services.items() if "ports" in service} == {
        "nginx": ["127.0.0.1:8080:8080"],
        "gateway-1": ["127.0.0.1:8788:8788"],  # the admin plane, to this machine alone
    }


def test_the_admin_plane_shows_both_instances(compose: dict[str, Any]) -> None:
    """One token and one history, in the PostgreSQL that is there; called by name, it answers (X-1, G-2)."""
    for name in GATEWAYS:
        settings = load_settings(env=given(compose["services"][name])).settings
        assert settings.admin_token.get_secret_value()
        assert AllowedHosts(variables()["BREAKLOOP_ADMIN_HOST"], settings.admin_hosts).known(f"{name}:8788")
        database = urlsplit(settings.history)
        postgres = compose["services"]["postgres"]["environment"]
        assert (database.scheme, database.hostname, database.port) == ("postgresql", "postgres", 5432)
        assert database.path == "/" + postgres["POSTGRES_DB"]
        assert (database.username, database.password) == (postgres["POSTGRES_USER"], "s3cr3t-" * 3)
        assert "postgres" not in compose["services"][name]["depends_on"]


def given(service: Any) -> dict[str, str]:
    """The variables of a service, each secret filled in."""
    return {key: re.sub(r"\$\{[^}]*\}", "s3cr3t-" * 3, value) for key, value in service["environment"].items()}


def test_the_top_names_every_secret_that_is_wanted() -> None:
    """Whoever sets these can start it."""
    text = COMPOSE.read_text(encoding="utf-8")
    head = text.partition("\nname:")[0]
    assert {name for name in re.findall(r"\$\{(\w+):\?", text) if name not in head} == set()
    page = (ROOT / "docs" / "how-to" / "docker.md").read_text(encoding="utf-8")
    assert {name for name in re.findall(r"\$\{(\w+):\?", text) if f"{name}=%s" not in page} == set()


def test_the_first_policy_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    """The first policy is valid (B-2)."""
    assert breakloop(["validate", str(DOCKER / "policy")]) == 0, capsys.readouterr().out


@pytest.mark.e2e
def test_compose_accepts_its_file(tmp_path: Path) -> None:
    """The Compose specification's own schema."""
    written = tmp_path / "compose.yaml"
    written.write_text(texts("docker")["compose.yaml"], encoding="utf-8")  # by `breakloop init`
    done = run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE), str(written))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("file", ["docker/compose.yaml", "kubernetes/redis.yaml"])
def test_redis_keeps_what_it_is_given(file: str) -> None:
    """A real server takes these options, and `doctor` has nothing to warn of (S-1, S-2)."""
    words = redis_options(file)
    with running(dict(zip(words[::2], words[1::2], strict=True))) as server:
        facts = {str(name): str(value) for name, value in server.client().info().items()}
        facts |= {str(name): str(value) for name, value in server.client().config_get("appendfsync").items()}
        assert (facts["aof_enabled"], facts["appendfsync"], facts["maxmemory"]) == ("1", "everysec", str(2**30))
        assert [one for one in judge(parse_redis_url(server.url), facts) if one.level != "note"] == []


def redis_options(file: str) -> list[str]:
    documents = yaml_documents((DEPLOY / file).read_text(encoding="utf-8"))
    if file.endswith("compose.yaml"):
        words = documents[0]["services"]["redis"]["command"]
    else:
        stateful = next(one for one in documents if one["kind"] == "StatefulSet")
        words = stateful["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[:2] == ["redis-server", "--requirepass"]
    assert "REDIS_PASSWORD" in words[2]
    return [word.removeprefix("--") for word in ("requirepass", "s3cr3t", *words[3:])]
