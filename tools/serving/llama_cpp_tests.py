"""Runs llama.cpp's own tests of its server against `hotmetal serve`.

usage: llama_cpp_tests.py BINARY TESTS STORIES.gguf [--only EXPRESSION] [--verbose]

TESTS is the folder `tools/server/tests` of a llama.cpp checkout; the source package of llama-cpp-python on PyPI has it
too. STORIES.gguf is stories260K, the model that most of them use (`ggml-org/test-model-stories260K`). Needs what TESTS
has in `requirements.txt`, and pytest-timeout.

The tests run as they are, from a copy, but nothing is downloaded first. In the place of `llama-server` stands a script
that puts the file into the place of the model's name and starts BINARY with all other arguments as they are, and with
`--chat-template chatml` where no template is named, because llama-server takes ChatML where a model has none. Tests
whose models cannot be had here are not counted: their servers would not start. Prints a line for each test that fails,
with the reason, and how many of each file pass.
"""

import argparse
import collections
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

# What the server is asked to load, where it is not stories260K: such a test does not count.
OTHER_MODEL = 77

SHIM = f"""#!{sys.executable}
import os, sys
binary, model = {{binary!r}}, {{model!r}}
arguments, repo = [], None
rest = iter(sys.argv[1:])
for argument in rest:
    # A file says more than its repository, and stands behind it.
    if argument in ("--hf-repo", "--hf-file"):
        repo = next(rest)
    else:
        arguments.append(argument)
if repo is not None:
    if repo not in ("ggml-org/test-model-stories260K", "tinyllamas/stories260K.gguf"):
        sys.exit({OTHER_MODEL})
    arguments += ["--model", model]
if "--model-draft" in arguments or "--lora" in arguments or "--mmproj-url" in arguments:
    sys.exit({OTHER_MODEL})
if repo is not None and not any(name in arguments for name in ("--chat-template", "--chat-template-file")):
    arguments += ["--chat-template", "chatml"]
os.execv(binary, [binary, "serve", *arguments])
"""

# Loaded before the tests' own configuration, which downloads every model.
PLUGIN = """
import utils
utils.ServerPreset.load_all = staticmethod(lambda: None)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("tests", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--only", default="", help="pytest's -k")
    parser.add_argument("--verbose", action="store_true", help="print what the servers and the tests print")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # Some read the templates of the checkout, by a relative path.
        tests = folder / "tools/server/tests"
        shutil.copytree(options.tests, tests)
        templates = options.tests / "../../../models/templates"
        if templates.exists():
            shutil.copytree(templates, folder / "models/templates")
        (tests / "no_downloads.py").write_text(PLUGIN)
        shim = folder / "llama-server"
        binary, model = (str(path.resolve()) for path in (options.binary, options.model))
        shim.write_text(SHIM.format(binary=binary, model=model))
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "unit", "-p", "no_downloads", "--timeout", "120", "-q"]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_logging=out-err"]
        command += ["-k", options.only] if options.only else []
        command += ["-s"] if options.verbose else ["--no-header", "--tb=line", "-o", "console_output_style=count"]
        environment = {**os.environ, "LLAMA_SERVER_BIN_PATH": str(shim), "PYTHONPATH": str(tests), "HOME": str(folder)}
        output = None if options.verbose else subprocess.DEVNULL
        subprocess.run(command, cwd=tests, env=environment, stdout=output, check=False)
        passed, counted, unhad = collections.Counter(), collections.Counter(), collections.Counter()
        for case in xml.parse(report).getroot().iter("testcase"):
            name = case.get("classname").removeprefix("unit.")
            fault = next((child for child in case if child.tag in ("failure", "error")), None)
            if case.find("skipped") is not None:
                unhad[name] += 1
                continue
            said = (fault.text or "") if fault is not None else ""
            if f"return code {OTHER_MODEL}" in said:
                unhad[name] += 1
                continue
            counted[name] += 1
            if fault is None:
                passed[name] += 1
            else:
                reason = " ".join((fault.get("message") or "").split())
                print(f"fails: {name}.{case.get('name')}: {reason[:300]}")
        print(f"\n{'file':<28} {'pass':>5} {'of':>5} {'without their model, or slow':>30}")
        for name in sorted(counted | unhad):
            print(f"{name:<28} {passed[name]:>5} {counted[name]:>5} {unhad[name]:>30}")
        print(f"{'all':<28} {passed.total():>5} {counted.total():>5} {unhad.total():>30}")


main()
