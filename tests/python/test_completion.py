"""What shells complete, asked of real ones."""

import shutil
import subprocess

import pytest

from programs import TOP, environment, need, program, python

ASK = {
    "bash": (
        'eval "$(tracectl completion bash)"; read -ra COMP_WORDS <<< "$0";'
        ' [[ $0 != *" " ]] || COMP_WORDS+=("");'
        " COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); compopt() { :; };"
        ' _tracectl; printf "%s\\n" "${COMPREPLY[@]}"'
    ),
    "zsh": (
        'compdef() { :; }; eval "$(tracectl completion zsh)";'
        ' compadd() { while [[ $1 != -- ]]; do shift; done; shift;'
        ' print -l -- "$@"; }; _files() { :; };'
        ' words=(${=0}); [[ $0 != *" " ]] || words+=("");'
        " CURRENT=$#words; _tracectl"
    ),
    "fish": 'tracectl completion fish | source; complete -C "$argv"',
}


@pytest.fixture(scope="module", params=ASK)
def complete(request, tmp_path_factory):
    """A function: the words of a shell for the end of a line."""
    shell = request.param
    need("tracectl")
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    # tracectl as users call it
    bin = tmp_path_factory.mktemp("bin")
    (bin / "tracectl").symlink_to(program("tracectl"))

    def ask(line, **env):
        env = environment(**env)
        env["PATH"] = f"{bin}:{env['PATH']}"
        done = subprocess.run(
            [shell, "-c", ASK[shell], line],
            cwd=bin, env=env, capture_output=True, text=True, timeout=60,
        )
        assert done.returncode == 0 and not done.stderr, done
        return [word.split("\t")[0] for word in done.stdout.split()]

    return ask


def test_commands_and_their_options(complete):
    assert complete("tracectl co") == ["compare", "completion"]
    assert complete("tracectl -o ") == ["text", "json", "csv"] or sorted(
        complete("tracectl -o ")  # fish sorts
    ) == ["csv", "json", "text"]
    assert set(complete("tracectl compare a b --a")) == {
        "--attempt", "--attempt-b", "--all",
    }
    assert complete("tracectl query --as o") == ["object"]
    assert complete("tracectl help doc") == ["doctor"]
    assert sorted(complete("tracectl completion ")) == ["bash", "fish", "zsh"]


def test_runs_and_names_of_records_are_asked_of_the_daemon(complete, daemon):
    for run in ("first", "second"):
        python(
            TOP / "tools/examples/linear.py",
            folder=daemon.dir, TRACERD_RUN=run,
        )
    here = {"TRACERD_DIR": daemon.dir}
    assert complete("tracectl compare first sec", **here) == ["second"]
    assert sorted(complete("tracectl -r ", **here)) == ["first", "second"]
    assert complete("tracectl -r second query forw", **here) == ["forward-"]
    assert "forward-CustomLinear-1-" in complete(
        "tracectl query forward-Cus", **here
    )
    assert "grad-layer1.weight-" in complete(
        "tracectl query grad-layer1", **here
    )


def test_without_a_daemon_nothing_is_said(complete, folder):
    """But fish, which is asked for files where there is nothing else."""
    gone = {"TRACERD_DIR": f"{folder}/none"}
    assert complete("tracectl -r fir", **gone) == []
    assert complete("tracectl check fir", **gone) == []
