"""Python exceptions by class; what their text tells is settled by the families before this one."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_BUILTIN = "Python: built-in exceptions"
_CODE = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.8)
_RUNTIME = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.6)
_IMPORT = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.8)
_FILE = Reading(Symptom.STORAGE_ERROR, Label.MANUAL, Action.ROLLBACK, 0.5)
_TRACE = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.2)
# A traceback quotes the line that raises, where the values that matter are names yet.
_START = r"(?:^|[\s\]>|:\"'])(?<!raise )(?:[a-z_][\w.]*\.)?"

RULES: tuple[Rule, ...] = (
    Rule(
        "import failed",
        _START + r"(?:modulenotfound|import)error\b|undefined symbol|cannot open shared object file"
        r"|glibc\w*_?[\d.]+' not found",
        Standing.CAUSE,
        _IMPORT,
        "code and environment do not fit",
        _BUILTIN,
        (
            "ModuleNotFoundError: No module named 'apex'",
            "ImportError: /opt/f.so: undefined symbol: _ZN3c104cuda",
        ),
    ),
    Rule(
        "error of the program",
        _START
        + r"(?:type|value|key|index|attribute|name|unboundlocal|assertion|notimplemented|syntax"
        r"|indentation"
        r"|zerodivision|arithmetic|recursion|lookup|overflow|stopiteration|validation"
        r"|configattribute|config\w*"
        r"|keyvalidation|torchruntime|unsupported|compilation|backendcompilerfailed"
        r"|internaltorchdynamo"
        r"|torchscript|instantiation|missingconfig|hydra|argument)(?:error|exception)\b"
        r"|error: (?:unrecognized arguments|the following arguments|argument -|invalid choice)"
        r"|triton.*error",
        Standing.CAUSE,
        _CODE,
        "an exception that a program raises for its own mistakes",
        _BUILTIN,
        (
            "TypeError: forward() got an unexpected keyword argument 'mask'",
            "[rank3]: KeyError: 'labels'",
            "train.py: error: unrecognized arguments: --no-such",
        ),
    ),
    Rule(
        "file not there",
        _START + r"(?:filenotfound|notadirectory|isadirectory|permission|fileexists)error\b"
        r"|no such file or directory",
        Standing.SIGN,
        _FILE,
        "a path is wrong, or its file system is not mounted",
        _BUILTIN,
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'",),
    ),
    Rule(
        "runtime error",
        _START + r"(?:c10::error|[a-z_]\w*(?:error|exception))\b(?=:|\s*$)|^exception\b(?=:|\s*$)"
        r"|^(?:\W*\w+\W+)?(?:expected (?:all tensors|to have finished)|mat1 and mat2)",
        Standing.SIGN,
        _RUNTIME,
        "an exception without a known text",
        _BUILTIN,
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 9x3)",),
    ),
    Rule(
        "traceback",
        r"traceback \(most recent call last\)|\bfile \"[^\"]+\", line \d+, in ",
        Standing.CONSEQUENCE,
        _TRACE,
        "a Python program failed; its last line is missing here",
        _BUILTIN,
        ('  File "train.py", line 7, in main',),
    ),
)
