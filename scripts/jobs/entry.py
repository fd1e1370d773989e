"""The frame around every script: Hydra composes, the task runs, and whatever a user did wrong is one line."""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from cast.errors import CastError
from jobs import schema
from jobs.composition import CONF, ConfigurationError, check_names, options
from jobs.messages import one_line
from jobs.pairs import Unavailable

Task = Callable[[DictConfig], Any]
SCRIPTS = Path(__file__).parents[1]

# Groups that a job cannot be without; Hydra has no word for it.
_NOTHING = re.compile(r"(experiment|setting|target|drafter|device|site|tracking|study)=(?:null)?")
_NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)


def run(task: Task, *, experiment: str | None = None, config_name: str = "config") -> None:
    """Run ``task`` under Hydra with this process's command line, and exit.

    Exit codes: 0 done (also where a record says that its cell failed), 2 a problem told in one line,
    130 interrupted. A traceback means a mistake of the program.

    Args:
        task: takes the composed configuration.
        experiment: the experiment this script measures when the command line names none.
        config_name: the root of the configuration, ``config`` or ``whole_study``.
    """
    schema.register()
    if any(re.search("[\ud800-\udfff]", text) for text in sys.argv):
        sys.exit(_tell("the command line is not UTF-8; give paths that are, for records name them"))
    for text in sys.argv:
        if nothing := _NOTHING.fullmatch(text):
            sys.exit(_tell(f"{text} chooses nothing; name one of {', '.join(options(nothing[1]))}"))
    # NVML counts GPUs in this order; torch, imported later, must name the same ones.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    # A launcher of Hydra's runs its jobs in processes that do not begin with this script, and so miss its folder.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SCRIPTS), os.environ.get("PYTHONPATH"))))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach us instead of Hydra's own printing
    if experiment and not any(text.startswith("experiment=") for text in sys.argv[1:]):
        # Beside the first override: argparse takes overrides in one run, and flags may stand on either side of it.
        overrides = (i for i, text in enumerate(sys.argv) if i and "=" in text and not text.startswith("-"))
        sys.argv.insert(next(overrides, len(sys.argv)), f"experiment={experiment}")
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(task.__globals__["__doc__"])  # what this script does; Hydra's help knows its values
    framed = hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(_framed(task))
    sys.exit(_exit_code(framed))


def _framed(task: Task) -> Task:
    """Errors leave the task as SystemExit: Hydra adds lines of its own to any other."""

    def checked(config: DictConfig) -> None:
        check_names(HydraConfig.get().runtime.choices)
        task(config)

    @functools.wraps(task)
    def frame(config: DictConfig) -> None:
        code = _exit_code(lambda: checked(config))
        if code:
            raise SystemExit(code)

    return frame


def _exit_code(call: Callable[[], Any]) -> int:
    try:
        call()
        return 0
    except (CastError, ConfigurationError, Unavailable) as error:
        return _tell(str(error))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        return _tell(one_line(error))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _tell(f"disk full ({error.filename or 'no path given'}); free some space and run again")
        if error.errno in _NO_PLACE and error.filename:
            return _tell(f"{error.filename}: {error.strerror}; choose another place")
        raise
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, run the same command to continue", file=sys.stderr)
        return 130


def _tell(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2
