"""A clickhouse-server of a test's own, and daemons that store into one."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

CONFIG = """<yandex>
<logger><level>warning</level><log>{0}/log</log>
    <errorlog>{0}/errors</errorlog></logger>
<http_port>{1}</http_port><tcp_port>{2}</tcp_port>{5}
<listen_host>{4}</listen_host>
<path>{0}/data/</path><tmp_path>{0}/tmp/</tmp_path>
<mark_cache_size>5000000</mark_cache_size>
<uncompressed_cache_size>0</uncompressed_cache_size>
<users_config>{0}/users.xml</users_config>
<default_profile>default</default_profile>
<default_database>default</default_database>
<remote_servers>{3}</remote_servers>
</yandex>
"""

# {0}: its folder, {1}: a port
TLS = """<https_port>{1}</https_port>
<openSSL><server>
    <certificateFile>{0}/server.crt</certificateFile>
    <privateKeyFile>{0}/server.key</privateKeyFile>
    <verificationMode>none</verificationMode>
    <loadDefaultCAFile>false</loadDefaultCAFile>
    <cacheSessions>true</cacheSessions>
    <disableProtocols>sslv2,sslv3</disableProtocols>
</server></openSSL>"""

USERS = """<yandex>
<profiles>
<default><max_memory_usage>2000000000</max_memory_usage></default>
<reader><readonly>1</readonly></reader>
</profiles>
<users>
<default><password></password><networks><ip>::/0</ip></networks>
    <profile>{0}</profile><quota>default</quota></default>
<secret><password>a word of its own</password>
    <networks><ip>::/0</ip></networks>
    <profile>default</profile><quota>default</quota></secret>
</users>
<quotas><default></default></quotas>
</yandex>
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def openssl(folder, *args):
    done = subprocess.run(
        ["openssl", *args], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def make_ca(folder):
    openssl(
        folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout",
        "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=nobody",
    )
    return f"{folder}/ca.crt"


class Server:
    """It starts empty; what it stores survives kill() and start()."""

    def __init__(self, folder, clusters="", host="127.0.0.1"):
        """clusters: XML of <remote_servers>."""
        if not shutil.which("clickhouse-server"):
            pytest.skip("no clickhouse-server")
        self.folder = Path(folder)
        self.port, self.tcp_port = free_port(), free_port()
        self.clusters, self.host, self.tls = clusters, host, ""
        self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process and self.process.poll() is None:
            self.go_on()
            self.kill()

    def url(self, database="traced", user="default", tail=""):
        return (
            f"clickhouse://{user}@{self.host}:{self.port}/{database}{tail}"
        )

    def use_tls(self):
        """An authority of its own, the file of which is returned, and a
        certificate by it. The plain port stays."""
        if not shutil.which("openssl"):
            pytest.skip("no openssl")
        self.folder.mkdir(exist_ok=True)
        self.tls_port = free_port()
        self.tls = TLS.format(self.folder, self.tls_port)
        ca = make_ca(self.folder)
        (self.folder / "names").write_text(f"subjectAltName=IP:{self.host}")
        openssl(
            self.folder, "req", "-newkey", "rsa:2048", "-nodes", "-keyout",
            "server.key", "-out", "server.csr", "-subj", "/CN=house",
        )
        openssl(
            self.folder, "x509", "-req", "-in", "server.csr", "-CA",
            "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out",
            "server.crt", "-days", "2", "-extfile", "names",
        )
        return ca

    def tls_url(self, user="secret", database="traced"):
        return f"clickhouses://{user}@{self.host}:{self.tls_port}/{database}"

    def configure(self, profile="default"):
        self.folder.mkdir(exist_ok=True)
        config = CONFIG.format(
            self.folder, self.port, self.tcp_port, self.clusters, self.host,
            self.tls,
        )
        (self.folder / "config.xml").write_text(config)
        (self.folder / "users.xml").write_text(USERS.format(profile))

    def start(self, profile="default"):
        self.configure(profile)
        with open(self.folder / "out", "ab") as out:
            self.process = subprocess.Popen(
                [
                    "clickhouse-server",
                    f"--config-file={self.folder}/config.xml",
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(os.environ, HOME=str(self.folder)),
            )
        end = time.monotonic() + 60
        while True:
            try:
                assert self.ask("SELECT 1") == "1\n"
                return
            except OSError:
                assert self.process.poll() is None, self.errors()
                assert time.monotonic() < end, self.errors()
                time.sleep(0.1)

    def errors(self):
        return (self.folder / "out").read_text(errors="replace")[-2000:]

    def ask(self, sql, database="default", timeout=30):
        request = urllib.request.Request(
            f"http://{self.host}:{self.port}/?database={database}",
            data=sql.encode(),
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def halt(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def keeper_of(folder, url):
    """A daemon with that store."""
    from programs import Daemon  # a benchmark has no tracerd to import

    path = f"{folder}/tracerd"
    os.mkdir(path, 0o700)
    with Daemon(path, "--store", url) as d:
        yield d
