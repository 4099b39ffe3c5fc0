"""What packaging/ has for containers is sound as far as can be told without an image: words, paths,
commands, alerts.  packaging/README.md says when the images are tried.
"""

from __future__ import annotations

import fnmatch
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib

import pytest
import yaml

from tests.tools.processes import PROJECT, Launcher, msgproto

FILE = PROJECT / "packaging" / "Containerfile"
TOML = PROJECT / "packaging" / "gateway.toml"
KNOWN = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL",
    "USER", "VOLUME", "WORKDIR",
}  # fmt: skip

Stage = list[tuple[str, str]]
"""The instructions of one stage, in order: each with the rest of its line."""


def stages() -> dict[str, Stage]:
    """The stages by name; lines are joined, comments left out."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, Stage] = {"": []}
    stage = ""
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, middle, stage = rest.split()
            assert middle == "AS" and (base in found or base == "${PYTHON}"), line
            found[stage] = []
        found[stage].append((word, " ".join(rest.split())))
    return found


def of(stage: str, word: str) -> list[str]:
    return [rest for name, rest in stages()[stage] if name == word]


def words_of(rest: str) -> list[str]:
    words: list[str] = json.loads(rest[rest.index("[") :])
    return words


def health() -> list[str]:
    """The words of the health check; its Python ends with status 1 for any failure, as the format
    wants it.
    """
    (rest,) = of("gateway", "HEALTHCHECK")
    return words_of(rest)


def ignored(path: str) -> bool:
    """Does .dockerignore leave this path out?  The last line that fits it decides."""
    answer = False
    for line in (PROJECT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if not line or line[0] == "#":
            continue
        if fnmatch.fnmatch(path, pattern) or path.startswith(pattern + "/"):
            answer = line[0] != "!"
    return answer


def test_every_instruction_is_known_and_every_stage_ends_in_an_image() -> None:
    assert list(stages()) == ["", "wheel", "base", "bridge", "gateway"]
    assert {word for stage in stages().values() for word, _ in stage} <= KNOWN


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    copied: set[str] = set()
    for stage in stages():
        for rest in of(stage, "COPY"):
            if rest.startswith("--from="):
                assert rest.removeprefix("--from=").split()[0] in stages()
                continue
            for path in rest.split()[:-1]:
                assert (PROJECT / path).exists(), path
                assert not ignored(path), path
                copied.add(path)
    assert "twisted_msgproto" in copied
    for path in (".git", ".venv", "tests", "clients"):
        assert ignored(path), path


def test_images_run_as_a_user_who_owns_the_volumes() -> None:
    (made,) = of("base", "RUN")
    for stage in ("gateway", "bridge"):
        names = [word for word, _ in stages()[stage]]
        assert of(stage, "USER") == ["msgproto"]
        assert names.index("USER") > names.index("RUN"), "what is installed is root's"
        for volume in words_of(of(stage, "VOLUME")[0]):
            assert volume in made, f"{volume} is made for the user"
    assert "useradd --uid 10001" in made


def test_the_commands_are_those_of_msgproto() -> None:
    entry = words_of(of("base", "ENTRYPOINT")[0])
    assert entry == ["msgproto"]
    for words in (words_of(of(stage, "CMD")[0]) for stage in ("gateway", "bridge")):
        known = msgproto(*words, "--help")
        assert all(word in known for word in words if word.startswith("--")), words


def test_the_bridges_image_sets_nothing_that_a_bridge_does_not_heed() -> None:
    """Each of its starts said so of SPARK_LOCAL_IP: local[*] needs none of Spark's variables."""
    assert "SPARK" not in " ".join(of("base", "ENV") + of("bridge", "ENV"))


def test_the_extras_that_are_installed_exist() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for stage, needed in (("gateway", "queue"), ("bridge", "spark")):
        (run,) = of(stage, "RUN")
        # The wheel by its name: pip would prefer a newer release from the index.
        match = re.match(r'set -- /wheel/\*\.whl && pip install --no-cache-dir "\$1\[(.*?)\]"', run)
        assert match is not None
        wanted = set(match[1].split(","))
        assert needed in wanted and wanted <= set(extras)


def test_compose_mounts_files_that_exist_and_publishes_the_ports_of_the_image() -> None:
    file = PROJECT / "packaging" / "compose.yaml"
    told = yaml.safe_load(file.read_text())
    services, volumes = told["services"], told["volumes"]
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in volumes or (file.parent / source).is_file(), volume
        build = service.get("build")
        assert build is None or ((file.parent / build["context"] / build["dockerfile"]).is_file())
        assert build is None or build["target"] in stages()
    assert services["bridge"]["depends_on"] == ["gateway"], "also on one whose queue is full"
    published = {word.split(":")[-1] for word in services["network"]["ports"]}
    assert published == set(of("gateway", "EXPOSE")[0].split())
    for name in ("gateway", "bridge"):
        for volume in services[name]["volumes"]:
            assert volume.split(":")[1] in words_of(of(name, "VOLUME")[0])
    scraped = yaml.safe_load((file.parent / "prometheus.yaml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:8480"]
    assert all((file.parent / name).is_file() for name in scraped["rule_files"])


def test_prometheus_finds_a_gateway_that_has_started_again() -> None:
    """Its network was the gateway's, which each start of a container makes anew."""
    services = yaml.safe_load((PROJECT / "packaging" / "compose.yaml").read_text())["services"]
    shared = {services[name]["network_mode"] for name in ("gateway", "prometheus")}
    assert shared == {"service:network"}
    mounted = services["grafana"]["volumes"][0].split(":")[0]
    (source,) = yaml.safe_load((PROJECT / "packaging" / mounted).read_text())["datasources"]
    assert source["url"] == "http://network:9090"


def test_the_manifests_of_kubernetes_run_commands_of_msgproto_with_volumes_that_they_have() -> None:
    text = (PROJECT / "packaging" / "kubernetes.yaml").read_text()
    manifests = list(yaml.safe_load_all(text))
    found = {one["kind"]: one for one in manifests}
    kinds = {"Service", "StatefulSet", "PersistentVolumeClaim", "Deployment"}
    assert set(found) == kinds
    services = {
        one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "Service"
    }
    served = {port["port"] for service in services.values() for port in service["ports"]}
    # A gateway whose queue is full is not ready until its bridge, which finds it, has landed it.
    ways = services[found["StatefulSet"]["spec"]["serviceName"]]
    assert ways["publishNotReadyAddresses"]
    assert [port["name"] for port in ways["ports"]] == ["flight"]
    exposed: set[int] = set()
    for kind in ("StatefulSet", "Deployment"):
        spec = found[kind]["spec"]
        pod = spec["template"]["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])]
        volumes = {volume["name"] for volume in pod["volumes"]} | set(claims)
        for container in pod["containers"]:
            command = container["args"][0]
            known = msgproto(command, "--help")
            options = [word.partition("=")[0] for word in container["args"] if word[:2] == "--"]
            assert options and all(option in known for option in options)
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            exposed |= {port["containerPort"] for port in container.get("ports", [])}
    assert "/healthz" in text
    assert exposed == served


@pytest.mark.parametrize("status", [200, 401, 503, None])
def test_kubernetes_ends_what_does_not_answer_and_nothing_else(status: int | None) -> None:
    """A full disk answers 503: started again, it would be as full."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if status is not None:
                self.send_response(status)
                self.end_headers()

        def log_message(self, *_: object) -> None: ...

    found = yaml.safe_load_all((PROJECT / "packaging" / "kubernetes.yaml").read_text())
    (gateway,) = [one for one in found if one["kind"] == "StatefulSet"]
    container = gateway["spec"]["template"]["spec"]["containers"][0]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for kind, well in (("liveness", status is not None), ("readiness", status == 200)):
            words = [*container[f"{kind}Probe"]["exec"]["command"]]
            words[2], changed = re.subn(r"\b8480\b", str(server.server_port), words[2])
            ended = subprocess.run([sys.executable, *words[1:]], stderr=subprocess.DEVNULL)
            assert (changed, ended.returncode == 0) == (1, well), kind
        server.shutdown()


def test_what_is_exposed_is_what_the_file_serves() -> None:
    served = set(re.findall(r'"tcp:(\d+)"', TOML.read_text()))
    assert set(of("gateway", "EXPOSE")[0].split()) == served
    queue = tomllib.loads(TOML.read_text())["queue"]["directory"]
    assert [queue] == words_of(of("gateway", "VOLUME")[0])
    status = tomllib.loads(TOML.read_text())["status"]["endpoint"]
    assert status == "tcp:8480:interface=127.0.0.1"
    assert "http://127.0.0.1:8480/healthz" in health()[-1]
    assert queue in words_of(of("bridge", "CMD")[0])


@pytest.mark.parametrize(
    "words", ["check config packaging/prometheus.yaml", "test rules tests/alerts.yaml"]
)
def test_prometheus_takes_its_file_and_warns_of_each_trouble(words: str) -> None:
    """RD-21: each alert comes, names what it is about and goes; none does while all is well."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here (Debian: the package prometheus)")
    ended = subprocess.run(
        ["promtool", *words.split()], cwd=PROJECT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_each_alert_is_tried() -> None:
    rules = yaml.safe_load((PROJECT / "packaging" / "alerts.yaml").read_text())["groups"][0]
    trials = yaml.safe_load((PROJECT / "tests" / "alerts.yaml").read_text())["tests"]
    tried = [one for trial in trials for one in trial["alert_rule_test"]]
    named = {one["alert"] for one in rules["rules"]}
    assert {one["alertname"] for one in tried if "exp_alerts" in one} == named
    assert {one["alertname"] for one in tried if "exp_alerts" not in one} == named


@pytest.mark.slow
def test_a_gateway_runs_with_the_images_file_and_is_healthy(launch: Launcher) -> None:
    text = re.sub(r"tcp:\d+[^\"]*", "tcp:0:interface=127.0.0.1", TOML.read_text())
    (launch.directory / "gateway.toml").write_text(text.replace("/var/spool/msgproto", "spool"))
    gateway = launch(*words_of(of("gateway", "CMD")[0])[:2], "gateway.toml")
    sent = launch.run("send", "lumberjack", gateway.address("lumberjack"), "--count", "3")
    assert sent.returncode == 0, sent.stderr
    assert health()[:2] == ["python3", "-c"]
    probe = health()[2].replace(":8480/", f":{gateway.port('status')}/")

    def status() -> int:
        return subprocess.run(
            [sys.executable, "-c", probe], check=False, stderr=subprocess.DEVNULL
        ).returncode

    assert status() == 0
    gateway.end()
    assert status() == 1
