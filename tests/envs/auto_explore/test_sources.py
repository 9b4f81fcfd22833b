from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.auto_explore.sources import ArchiveLimits, fetch, fetch_all, unpack


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with two commits, a tag, and a hook that would leave a mark."""
    for name, value in {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "origin" / "coffee shop.git"
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    for text in ("old", "new"):
        (folder / "README.md").write_text(text)
        git(folder, "add", "README.md")
        git(folder, "commit", "--quiet", "-m", text)
    git(folder, "tag", "v1")
    return folder


def test_a_local_folder_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my shop!").mkdir()
    before = list(tmp_path.rglob("*"))
    assert fetch(str(tmp_path / "my shop!"), tmp_path / "into") == ("my-shop", tmp_path / "my shop!")
    monkeypatch.chdir(tmp_path / "my shop!")
    assert fetch(".", tmp_path / "into") == ("my-shop", Path())
    assert list(tmp_path.rglob("*")) == before


def test_repositories_have_names_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "docs", tmp_path / "b" / "docs", tmp_path / "été", tmp_path / ".."]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    names = fetch_all([str(folder) for folder in folders[:3]], tmp_path / "into")
    assert names == {"docs": folders[0], "docs-2": folders[1], "t": folders[2]}
    with pytest.raises(InvalidInput, match="docs"):
        fetch_all([str(folders[0])] * 2, tmp_path / "into")


@pytest.mark.parametrize(
    "source",
    ["", "no/such/folder", "ftp://example.org/a.git", "https://example.org/page", "x::y"]
    + ["git+--upload-pack=touch mark", "git+ext::sh -c touch% mark", "git+ssh://-oProxyCommand=mark/a", "git+"]
    + ["git@-oProxyCommand=mark:a", "git@example.org:-a", "git+no/such/folder"]
    + ["pypi:", "pypi:-r", "pypi:shop @ https://example.org/a.zip", "pypi:./shop", "pypi:shop>=1", "pypi:shop=="]
    + ["pypi:shop[x]", "company:nan", "company:", "company:nano:x", "company:nano:", "company:nano:-1"],
)
def test_what_is_no_source_is_refused_before_git_or_pip_sees_it(tmp_path: Path, source: str) -> None:
    with pytest.raises(
        InvalidInput, match=re.escape(repr(source.rpartition(":")[2] if "company" in source else source))
    ):
        fetch(source, tmp_path / "into")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["git+{}", "git+file://{}"])
def test_git_brings_the_last_commit_without_its_history(origin: Path, tmp_path: Path, form: str) -> None:
    name, path = fetch(form.format(origin), tmp_path / "into")
    assert (name, path) == ("coffee-shop", tmp_path / "into" / "coffee-shop")
    assert [(file.name, file.read_text()) for file in path.iterdir()] == [("README.md", "new")]
    assert fetch(f"git+{origin}", tmp_path / "into")[0] == "coffee-shop-2"
    assert sorted(folder.name for folder in (tmp_path / "into").iterdir()) == ["coffee-shop", "coffee-shop-2"]


def test_git_runs_no_hook_and_fetches_no_submodule(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(origin, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(origin), "inner")
    git(origin, "commit", "--quiet", "-m", "inner")
    mark, hooks = tmp_path / "mark", tmp_path / "template" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (hooks / "post-checkout").chmod(0o755)
    config = tmp_path / "config"
    config.write_text(f"[core]\nhooksPath = {hooks}\n")
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(hooks.parent))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    git(tmp_path, "clone", str(origin), "plain")
    assert mark.exists()
    mark.unlink()
    _, path = fetch(f"git+{origin}", tmp_path / "into")
    assert list((path / "inner").iterdir()) == []
    assert not mark.exists()


def test_git_leaves_large_files_where_they_are(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (origin / ".gitattributes").write_text("*.md filter=lfs\n")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "lfs")
    (tmp_path / "config").write_text('[filter "lfs"]\nsmudge = "printenv GIT_LFS_SKIP_SMUDGE"\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    _, path = fetch(f"git+{origin}", tmp_path / "into")
    assert (path / "README.md").read_text() == "1\n"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorkFailed, match="'git'"):
        fetch("git@example.org:shop.git", tmp_path / "into")


def test_a_git_repository_that_does_not_exist_is_named_without_its_password(origin: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match="gone"):
        fetch(f"git+file://{origin}/gone", tmp_path / "into")
    with pytest.raises(WorkFailed) as failure:
        fetch("https://me:secret@127.0.0.1:9/shop.git", tmp_path / "into")
    assert "'https://127.0.0.1:9/shop.git'" in str(failure.value)
    assert "secret" not in str(failure.value)
    assert list((tmp_path / "into").iterdir()) == []


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_server_that_says_nothing_is_not_waited_for(
    silent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(WorkFailed, match=r"shop\.git.* 0\.5 "):
        fetch(f"git+http://127.0.0.1:{silent}/shop.git", tmp_path / "into", timeout_s=0.5)
    assert list((tmp_path / "into").iterdir()) == []


BACKEND = """
import os

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = os.path.join(folder, "tinyshop-1.0.dist-info")
    os.mkdir(info)
    with open(os.path.join(info, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: tinyshop\\nVersion: 1.0\\n")
    return "tinyshop-1.0.dist-info"

def build_wheel(*_):
    raise SystemExit("nothing is to be built")
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, in place of the index: tinyshop 1.0, whose build needs nothing."""
    package = tmp_path / "tinyshop-1.0"
    (package / "src").mkdir(parents=True)
    (package / "backend.py").write_text(BACKEND)
    (package / "src" / "shop.py").write_text("")
    (package / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tinyshop\nVersion: 1.0\n")
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (tmp_path / "index").mkdir()
    with tarfile.open(tmp_path / "index" / "tinyshop-1.0.tar.gz", "w:gz") as tar:
        tar.add(package, "tinyshop-1.0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


@pytest.mark.usefixtures("index")
def test_a_package_is_its_source_archive(tmp_path: Path) -> None:
    name, path = fetch("pypi:tinyshop==1.0", tmp_path / "into")
    assert (name, path) == ("tinyshop", tmp_path / "into" / "tinyshop")
    assert sorted(file.name for file in path.iterdir()) == ["PKG-INFO", "backend.py", "pyproject.toml", "src"]
    with pytest.raises(WorkFailed, match=r"tinyshop==2\.0"):
        fetch("pypi:tinyshop==2.0", tmp_path / "into")
    assert [folder.name for folder in (tmp_path / "into").iterdir()] == ["tinyshop"]


def tar_with(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, size: int = 1, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, size if kind == tarfile.REGTYPE else 0
    return member


def test_an_archive_unpacks_to_its_only_folder_without_links(tmp_path: Path) -> None:
    members = (
        entry("shop/a.md"),
        entry("shop/out", tarfile.SYMTYPE, link="/etc"),
        entry("shop/hard", tarfile.LNKTYPE, link="shop/a.md"),
        entry("shop/deep/b.md"),
    )
    root = unpack(tar_with(tmp_path / "a.tar.gz", *members), tmp_path / "into")
    assert root == tmp_path / "into" / "shop"
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["a.md", "deep", "deep/b.md"]


def test_an_archive_without_a_folder_of_its_own_is_the_repository(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a.md", "a")
        file.writestr("deep/b.md", "b")
    root = unpack(tmp_path / "a.zip", tmp_path / "into")
    assert root == tmp_path / "into"
    assert (root / "deep" / "b.md").read_text() == "b"


@pytest.mark.parametrize(
    ("member", "sentence"),
    [
        (entry("shop/../../x"), "outside its folder"),
        (entry("/x"), "outside its folder"),
        (entry("shop/null", tarfile.CHRTYPE), "a device"),
        (entry("shop/pipe", tarfile.FIFOTYPE), "a device"),
    ],
)
def test_a_hostile_member_is_refused(tmp_path: Path, member: tarfile.TarInfo, sentence: str) -> None:
    archive = tar_with(tmp_path / "a.tar.gz", entry("shop/a.md"), member)
    with pytest.raises(InvalidInput, match=sentence):
        unpack(archive, tmp_path / "deep" / "into")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "deep"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    link = entry("shop/out", tarfile.SYMTYPE, link=str(tmp_path / "outside"))
    unpack(tar_with(tmp_path / "a.tar.gz", link, entry("shop/out/x.md")), tmp_path / "into")
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "into" / "shop" / "out" / "x.md").is_file()


@pytest.mark.parametrize("name", ["../x", "/x"])
def test_a_hostile_member_of_a_zip_archive_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(name, "x")
    with pytest.raises(InvalidInput, match="outside its folder"):
        unpack(tmp_path / "a.zip", tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_more_than_the_limits_is_refused_before_it_is_written(tmp_path: Path) -> None:
    large = tar_with(tmp_path / "large.tar.gz", entry("shop/a.md"), entry("shop/b.md", size=5_000_000))
    with pytest.raises(InvalidInput, match="too large from member 'shop/b.md' on"):
        unpack(large, tmp_path / "large", ArchiveLimits(bytes=1_000_000))
    assert [path.name for path in (tmp_path / "large" / "shop").iterdir()] == ["a.md"]
    many = tar_with(tmp_path / "many.tar.gz", *(entry(f"shop/{number}.md") for number in range(11)))
    with pytest.raises(InvalidInput, match="too large from member 'shop/10.md' on"):
        unpack(many, tmp_path / "many", ArchiveLimits(members=10))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("shop/a.md", bytes(5_000_000))
    with pytest.raises(InvalidInput, match="too large from member 'shop/a.md' on"):
        unpack(tmp_path / "bomb.zip", tmp_path / "bomb", ArchiveLimits(bytes=1_000_000))


@pytest.mark.parametrize("cut", [0, 10, 60])
def test_a_damaged_archive_is_named(tmp_path: Path, cut: int) -> None:
    archive = tar_with(tmp_path / "a.tar.gz", entry("shop/a.md", size=10_000))
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(WorkFailed, match="a.tar.gz cannot be unpacked"):
        unpack(archive, tmp_path / "into")
