"""Identifying texts: patterns of paths and addresses, and the names and values that a profile lists. Used by `scrub`.

Everything here works on bytes, since texts in profiles need not be UTF-8.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from hashlib import sha256
from sys import stdlib_module_names
from typing import Final

from warplens.patterns import lazy_pattern

_SEGMENT = rb"[^\s/\\\"'<>|;,()\[\]{}\x00]"
#: Folders inside a path may hold spaces, where a separator follows.
_FOLDERS = rb"(?:%b+(?: %b+){0,3}[/\\]+)*%b*" % ((_SEGMENT,) * 3)
#: ONNX and TensorRT name layers like absolute paths, `/model/layer.3/attention/MatMul`. Such a name is kept if all
#: parts before the last one (the operator) are known parts of networks.
_LAYERS = (
    rb"(?:(?:model|module|backbone|body|trunk|encoders?|decoders?|transformer|bert|gpt|llama|vit|visual|vision|text|lm_head"
    rb"|heads?|classifier|pooler|embed\w*|\w*embeddings?|patch_embed|pos_embed|wte|wpe|layers?|blocks?|stages?|features"
    rb"|h|attn|self_attn|cross_attn|attention|self_attention|self|output|intermediate|dense|mlp|ffn|ff|experts?|gate|router"
    rb"|fc\d*|proj|[qkvo]_proj|qkv|query|key|value|out_proj|up_proj|down_proj|gate_proj|conv\w*|bn\d*|norm\d*|\w*norm\w*"
    rb"|ln_\w+|act\w*|dropout|drop\w*|softmax|gelu|relu|down|up|downsample|upsample|net|linear\d*)(?:[._]?\d+)*/)+"
    rb"[A-Z][A-Za-z0-9]*(?:_\d+)*(?![\w./\\-])"
)
#: NVIDIA's manuals, which its rules refer to.
_MANUALS = rb"(?!(?:docs|developer)\.nvidia\.com(?![\w.-]))"
#: Paths: absolute (any mount; only names of layers are kept), of a home folder, relative to a parent folder, of Windows
#: and its network, and addresses with a scheme.
#: Each alternative begins at the begin of a word, so that the time is linear in the length of the text.
PATHS = lazy_pattern(
    rb"(?<!%b)(?<!/)(?:%b|/)*/(?:home|Users|root)/%b" % (_SEGMENT, _SEGMENT, _FOLDERS)
    + rb"|(?<![\w.)\]>~/])/+(?!%b)%b[\w.@+-]+/+%b" % (_LAYERS, _MANUALS, _FOLDERS)
    + rb"|(?<![\w.+-])[A-Za-z][A-Za-z0-9+.-]{1,15}://%b%b" % (_MANUALS, _FOLDERS)
    + rb"|(?<![\w)\]~])~[A-Za-z_][\w.-]*(?![\w.-])(?:[/\\]+%b)?|(?<![\w)\]~])~[/\\]+%b" % (_FOLDERS, _FOLDERS)
    + rb"|(?<![\w./\\])(?:\.\.?[/\\]+)+%b" % _FOLDERS
    + rb"|(?<![A-Za-z])[A-Za-z]:[/\\]+%b" % _FOLDERS
    + rb"|\\\\[\w.-]+\\%b" % _FOLDERS
)

#: Last parts of names of machines. Modules of a program are joined by points, too (`model.net`): endings that are also
#: words of programs count only after two other parts of which one has a digit or a hyphen.
_DOMAIN = rb"com|org|edu|gov|mil|info|biz|cloud|local|localdomain|internal|intranet|lan|corp|example|invalid|arpa|onion"
_COUNTRY = (
    rb"ac|ai|at|au|be|br|ca|ch|cn|co|cz|de|dk|es|eu|fi|fr|gr|hk|hu|ie|il|in|io|it|jp|kr|mx|net|nl|no|nz|pl|pt|ru|se|sg|tw"
    rb"|uk|us|za|test|home|cluster|svc|site|tech|dev|app"
)
_HEX = rb"[0-9A-Fa-f]"
#: Texts that identify by their form, anywhere. Kind → pattern; each begins at the begin of a word.
FORMS: Final[dict[str, bytes]] = {
    "mail, user@machine": rb"(?<![\w.+-])[\w.+-]+@(?:[A-Za-z][\w-]*(?:\.[\w-]+)*|\d{1,3}(?:\.\d{1,3}){3}(?![\w.]))",
    "network address": (
        rb"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|(?<![\w.-])ip(?:-\d{1,3}){4}(?![\w-])(?:\.[\w-]+)*"
        rb"|(?<![\w:.])(?:[23]%(h)b{3}|[Ff][89A-Fa-f]%(h)b{2}):(?:%(h)b{0,4}:){1,6}(?:%(h)b{1,4})?(?![\w:])"
        rb"|(?<![\w:.])(?:%(h)b{1,4}:){7}%(h)b{1,4}(?![\w:])"
    )
    % {b"h": _HEX},
    "machine": (
        rb"(?<![\w.-])%b[A-Za-z0-9](?:[\w-]*\.)+(?i:%b)(?![\w-]|\.\w)"
        rb"|(?<![\w.-])(?=[A-Za-z_]*\d|[\w.]*-)[A-Za-z0-9][\w-]*(?:\.[\w-]+)+\.(?i:%b)(?![\w-]|\.\w)"
    )
    % (_MANUALS, _DOMAIN, _COUNTRY),
    "hardware address": (
        rb"(?<![\w:-])%(h)b{2}(?::%(h)b{2}){5,19}(?![\w:-])|(?<![\w:-])%(h)b{2}(?:-%(h)b{2}){5,7}(?![\w:-])"
        rb"|(?<![\w:])(?:%(h)b{4,8}:)?%(h)b{2}:%(h)b{2}\.[0-7](?!\w)|(?<![\w:])%(h)b{4}(?::%(h)b{4}){3}(?![\w:])"
        rb"|(?<![\w.])%(h)b{4}\.%(h)b{4}\.%(h)b{4}(?![\w.])"
    )
    % {b"h": _HEX},
    "identifier": rb"(?<!\w)(?:[A-Z]{3}-)?%(h)b{8}-(?:%(h)b{4}-){3}%(h)b{12}(?!\w)" % {b"h": _HEX},
    # hf_ and its like begin names in programs, too (`hf_forward_1`): what follows must look like no word.
    "token": (
        rb"(?<![A-Za-z0-9])(?:(?:glpat-|github_pat_|xox[abprs]-|dop_v1_|nvapi-|AIza|ya29\.)[\w-]{16,}"
        rb"|(?:sk-|pypi-|[spr]k_(?:live|test)_)(?=[\w-]{0,99}\d)[\w-]{16,}"
        rb"|(?:hf|gh[opsur]|npm)_(?=(?:[A-Za-z]{0,99}\d){2}|[A-Za-z]{34})[A-Za-z0-9]{16,})"
        rb"|(?<!\w)A[KS]IA[A-Z0-9]{16}(?!\w)|(?<!\w)eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
        rb"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?s:.*?)(?:-----END [A-Z ]{0,40}KEY-----|\Z)"
        rb"|(?<!\w)%(h)b{32,}(?!\w)|(?<!\w)(?=[A-Za-z]*\d)(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])"
        rb"(?=(?:[A-Za-z]*\d){4})[A-Za-z0-9]{20,}(?!\w)"
        rb"|(?i:(?:(?<![A-Za-z])(?:auth|access|api|bearer|client|refresh)?[_-]?(?:token(?![\\\"'=:\s]*\d+\b)|secret|passwd"
        rb"|password|passphrase|credentials?|(?:api|account|(?:shared[_-]?)?access)[_-]?key|bearer)"
        rb"(?:[_-](?:access[_-])?key)?\\?[\"']?\s?[=:]\s?"
        rb"|(?<![A-Za-z])authorization\\?[\"']?\s?[=:]\s?(?:\\?[\"'])?(?:basic|bearer|token)\s"
        rb"|(?<![\w-])--(?:[a-z]+-)*(?:token|secret|password|passphrase|key)\s"
        rb"|(?<![A-Za-z])bearer\s(?=\S*\d)(?=\S{12})"
        rb"|(?<![A-Za-z])pass(?:wd|word|phrase)\s(?:is\s)?(?=[^\s,;]*\d)(?=[^\s,;]*[a-z]))\\?[\"']?[^\s,;&\"'\\\[]+)"
    )
    % {b"h": _HEX},
}
#: All of them.
ADDRESSES = lazy_pattern(b"|".join(FORMS.values()))
#: Texts that a scrubbed file must not contain anywhere. All of them match `PATHS`, too.
FORBIDDEN = lazy_pattern(rb"/(?:home|Users)/[\w.~-]|/root/|(?<![A-Za-z])[A-Za-z]:[/\\]+(?i:users)[/\\]")

_HOME_OWNER = lazy_pattern(rb"(?:/home/|/Users/|[A-Za-z]:[/\\]+[Uu]sers[/\\]+)([^/\\\s\"';:\x00]+)")
#: Names of settings and environment variables with identifying or secret values.
IDENTIFYING = lazy_pattern(
    rb"USER|LOGNAME|HOST|COMPUTER|CONTAINER|DISPLAY_NAME|MAIL|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|ACCOUNT|API_?KEY|PRIVATE"
    rb"|ACCESS|LICENSE|PROXY|SESSION_UUID",
    re.IGNORECASE,
)
_COMMAND_LINE = lazy_pattern(rb":(COMMAND|ARGUMENT_\d+|WORKING_DIR)$|_(PATH|FILE)(_ABS)?$")
#: Values of identifying settings that identify nobody; and the words of the marks for removed texts.
_COMMON = frozenset(
    b"root user users admin administrator localhost local guest default unknown none null true false yes no auto nobody"
    b" ubuntu debian linux windows docker container python python3 cuda nvidia x86_64 aarch64 production development"
    b" path removed".split()
)
#: A shorter name is more likely a word than an identity.
_SHORTEST_NAME = 3
#: Values longer than this, and those that are not plain words, are redacted inside words, too.
_LONGEST_WORD = 15
#: A word with a digit, hyphen or underscore that is this long: the name of a job, a project or a model.
_LABEL = lazy_pattern(
    rb"(?=.{8})(?=[\d_.-]*[A-Za-z])(?=[A-Za-z.]*[\d_-])[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+|\.\d[A-Za-z0-9]*)*"
)
#: Words of programs, which identify nobody, nor does what is made of them (`train_step`).
_PROGRAM_WORDS = frozenset(
    b"train training val validation test eval evaluation infer inference predict generate generation sample"
    b" sampling prefill decode warmup step steps iter iteration epoch batch micro minibatch loop pass run main"
    b" forward backward fwd bwd only mode optimizer optim adam adamw sgd loss grad gradient update sync zero data"
    b" load loader model models layer block blocks attn attention mlp embedding encoder decoder head norm compute"
    b" kernel profile profiling benchmark bench text image reduce overhead max autotune compile eager info warning"
    b" debug lazy float bfloat int fp bf half mixed copy".split()
)


class Secrets:
    """Known identifying texts. Collected while a profile is searched, before its first text is rewritten.

    Attributes:
        names: redacted as whole words: hosts, users, short values.
        values: redacted anywhere: longer identifying values.
        others: the rest of the environment and the command line. A copy is searched for them; those of them that are
            `labels` are redacted in names that people gave.
    """

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.values: set[bytes] = set()
        self.others: set[bytes] = set()

    @cached_property
    def pattern(self) -> re.Pattern[bytes] | None:
        """Matches `names` and `values`; None where there are none. Fixed at first use."""
        words = sorted(self.names | self.values, key=len, reverse=True)
        return re.compile(b"|".join(map(self._expression, words)), re.IGNORECASE) if words else None

    @cached_property
    def labels(self) -> re.Pattern[bytes] | None:
        """Matches the `others` that are no words but names; None where there are none. Fixed at first use."""
        labels = sorted(filter(_LABEL.fullmatch, self.others), key=len, reverse=True)
        return re.compile(b"|".join(map(_whole, labels)), re.IGNORECASE) if labels else None

    def left_in(self, text: bytes) -> int:
        """Number of `others` that stand in a text as whole words."""
        folded = text.lower()
        return sum(
            value.lower() in folded and re.search(_whole(value), text, re.IGNORECASE) is not None
            for value in self.others
        )

    @property
    def all(self) -> frozenset[bytes]:
        """All texts that a copy is searched for."""
        return frozenset(self.names | self.values | self.others)

    def _expression(self, word: bytes) -> bytes:
        return _whole(word) if word in self.names else re.escape(word)

    def add_setting(self, name: bytes, value: bytes) -> None:
        """Add a setting of an export of Nsight Systems."""
        self.add_home_owners(value)
        if name.endswith(b":ENVIRONMENT_VARIABLE"):
            self.add_variable(value)
        elif name == b"DeviceEnvironment":
            for variable in value.split(b";"):
                self.add_variable(variable)
        elif IDENTIFYING.search(name):
            self.identify(value)
        elif _COMMAND_LINE.search(name):
            self.add_other(value)
            for word in re.split(rb"[\s=]+", value):
                self.add_other(word)

    def add_variable(self, variable: bytes) -> None:
        """Add a variable of the environment, `NAME=value`."""
        key, _, value = variable.partition(b"=")
        value = value.strip(b'"')
        if IDENTIFYING.search(key):
            self.identify(value)
        else:
            self.add_other(value)

    def add_other(self, value: bytes) -> None:
        """Add a value that may be a name or a word, unless it is an option, a number, or made of common words."""
        value = value.strip(b"\"' ")
        words = set(re.findall(rb"[a-z\x80-\xff]+", value.lower()))
        if len(value) >= _SHORTEST_NAME and not value.startswith(b"-") and not words <= _PROGRAM_WORDS | _COMMON:
            self.others.add(value)

    def add_home_owners(self, text: bytes) -> None:
        """Add the owners of the home folders in a text."""
        for owner in _HOME_OWNER.findall(text):
            self.identify(owner)

    def identify(self, value: bytes) -> None:
        """Add an identifying value, unless it is a common one."""
        value = value.strip()
        if len(value) < _SHORTEST_NAME or value.lower() in _COMMON or value.isdigit() or PATHS.fullmatch(value):
            return
        is_word = len(value) <= _LONGEST_WORD and re.fullmatch(rb"[A-Za-z0-9]+", value)
        (self.names if is_word else self.values).add(value)


def _whole(word: bytes) -> bytes:
    """The pattern of a whole word."""
    return rb"(?<![A-Za-z0-9])%b(?![A-Za-z0-9])" % re.escape(word)


REMOVED = b"[removed]"
#: Marks for removed parts of a text.
MARK = lazy_pattern(r"\[(?:path \d+|removed)\]")

#: No name or annotation is longer. Such a text is removed entirely: matching it would take a hundred times its size in
#: memory.
_LONGEST_TEXT = 2**20

#: The folders of a Python function's file, `/home/ann/project/train.py(12): main`; for installed packages, the path
#: below the package folder identifies the function and is kept.
_TEXTS_FOLDERS = lazy_pattern(rb"\A\s*(?:(?:[A-Za-z]:)?[/\\]|\.\.?[/\\]|~).*[/\\]", re.DOTALL)
#: The folders of such a file below a folder from which Python imports, and the first of them, which is its package.
_PACKAGES = lazy_pattern(
    rb"\A\s*(?P<top>[^/\\()<>:;]+)[/\\](?:[^()<>:;]*[/\\])?(?=[^/\\]+(?:\(\d+\): |\.py\w*\Z))", re.DOTALL
)
#: Packages that many programs use, and those of Python's own library: their files identify nobody.
_LIBRARIES = frozenset(
    b"torch torchgen functorch torchvision torchaudio torchmetrics torchao torchtitan torch_geometric triton"
    b" triton_kernels numpy scipy pandas sklearn matplotlib PIL cv2 tqdm einops numba cupy cupyx nvtx nvidia jax"
    b" jaxlib flax optax tensorflow keras transformers tokenizers safetensors huggingface_hub sentence_transformers"
    b" diffusers accelerate peft trl bitsandbytes timm lightning lightning_fabric pytorch_lightning deepspeed"
    b" megatron transformer_engine xformers flash_attn flashinfer vllm sglang tensorrt tensorrt_llm onnxruntime"
    b" fairseq fairscale ray wandb mlflow tensorboard asyncio collections concurrent contextlib ctypes email"
    b" encodings html http importlib json logging multiprocessing re sqlite3 unittest urllib xml zipfile"
    b" _distutils_hack".split()
)
_FILE = lazy_pattern(rb"\s*([^/\\()<>:;]+?)(?:\.py\w*\(|[/\\])|\s*<")
_INSTALLED = lazy_pattern(rb".*[/\\](?:site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]", re.DOTALL)


def _of_library(frame: bytes) -> bool:
    """Whether a Python function is one of a known library, of Python's own, or built in."""
    file = _FILE.match(frame)
    top = (file and file[1]) or b""
    return file is not None and (not top or top in _LIBRARIES or top.decode("utf-8", "replace") in stdlib_module_names)


def without_folders(name: str) -> str:
    """A Python function as profilers write it, `file(line): function`, without the folders above its file.

    For installed packages the path inside the package is kept. For other files with an absolute path, or one from the
    home or working folder, only the name is kept: any folder above it may contain the name of a person.

    >>> without_folders("/home/ann/project/train.py(12): main")
    'train.py(12): main'
    >>> without_folders("/opt/lib/python3.12/site-packages/timm/layers/mlp.py(40): forward")
    'timm/layers/mlp.py(40): forward'
    """
    folders = _TEXTS_FOLDERS.match(text := name.encode("utf-8", "surrogatepass"))
    if folders is None:
        return name
    installed = _INSTALLED.match(folders.group())
    return text[installed.end() if installed else folders.end() :].decode("utf-8", "surrogatepass")


#: A plain value of an operator: a number, a truth value, None, a dtype or layout, or a list of these. Numbers are
#: delimited: digits that could be split in many ways would all be tried.
_PLAIN_VALUE = lazy_pattern(
    r"(?:[\s\[\](),+:-]|(?<![\d.])\d[\d.]*(?:e[-+]?\d+)?j?|\b(?:True|False|None|nan|inf|e|torch\.\w+|int|float|cuda|cpu)\b)*"
)


def without_values(inputs: str) -> str:
    """The concrete inputs of an operator, a JSON list as text, with texts removed and plain values kept.

    >>> without_values('["", "1e-05", "[1, 2]", "s3://bucket/ann"]')
    '["","1e-05","[1, 2]","[removed]"]'
    """
    try:
        values = json.loads(inputs)
    except (ValueError, RecursionError):
        return REMOVED.decode()
    if not any(has_other_values(text) for text in texts_in(values)):
        return inputs
    scrubbed = ["[removed]" if any(map(has_other_values, texts_in(value))) else value for value in values]
    return json.dumps(scrubbed, separators=(",", ":"))


def has_other_values(text: str) -> bool:
    """Whether a concrete input of an operator holds more than plain values."""
    return text != REMOVED.decode() and not _PLAIN_VALUE.fullmatch(text)


#: The reason to rewrite a text with such a name or value.
_LISTED: Final = "name or value listed in the profile"


class Cleaner:
    """Rewrites texts, the same text always in the same way, and counts them.

    Args:
        secrets: what to remove.
        named: the places with names that people gave, such as those of ranges: `Secrets.labels` are removed there.
            Elsewhere they are coincidences, such as the name of a GPU or of a table.
    """

    def __init__(self, secrets: Secrets, named: Collection[str] = ()) -> None:
        self.secrets = secrets
        self._named = named
        self._paths: dict[bytes, bytes] = {}
        self._texts: dict[str, dict[bytes, bytes]] = {}

    def written(self, place: str, text: bytes) -> bytes:
        """A text written by people, without paths, addresses and secrets."""
        return self._clean(place, text, self._without_labels if place in self._named else self._without_all)

    def text(self, place: str, text: str) -> str:
        """`written` for text that is decoded already."""
        return self.written(place, text.encode("utf-8", "replace")).decode()

    def function(self, place: str, text: bytes) -> bytes:
        """The name of a function, without paths. A compiler wrote it: an equal user name in it is a coincidence."""
        return self._clean(place, text, lambda name: PATHS.sub(self._numbered, name))

    def python(self, place: str, text: bytes) -> bytes:
        """Names of Python functions: of their files' folders only those inside known libraries are kept."""
        return self._clean(place, text, self._without_python_folders)

    def _clean(self, place: str, text: bytes, rewrite: Callable[[bytes], bytes]) -> bytes:
        known = self._texts.setdefault(place, {})
        key = text if len(text) <= _LONGEST_TEXT else b"long " + sha256(text).digest()
        if key not in known:
            known[key] = rewrite(text) if key is text else REMOVED
        return known[key]

    def _without_all(self, text: bytes) -> bytes:
        clean = ADDRESSES.sub(REMOVED, PATHS.sub(self._numbered, text))
        return self.secrets.pattern.sub(REMOVED, clean) if self.secrets.pattern else clean

    def _without_labels(self, text: bytes) -> bytes:
        clean = self._without_all(text)
        return self.secrets.labels.sub(REMOVED, clean) if self.secrets.labels else clean

    def _without_python_folders(self, text: bytes) -> bytes:
        frames = (
            _PACKAGES.sub(self._without_packages, _TEXTS_FOLDERS.sub(self._without_folders, frame))
            for frame in text.split(b";")
        )
        return self._without_all(b";".join(frames))

    def rewritten(self) -> dict[str, int]:
        """Number of distinct rewritten texts by place."""
        counts = {place: sum(old != new for old, new in texts.items()) for place, texts in self._texts.items()}
        return {place: count for place, count in counts.items() if count}

    def kinds(self) -> dict[str, int]:
        """Number of distinct rewritten texts by reason: paths, each of `FORMS`, and names listed in the profile.

        A text with several reasons counts for each; a text without any counts as "other value".
        """
        patterns = {"path": PATHS, **{kind: re.compile(form) for kind, form in FORMS.items()}}
        if self.secrets.pattern:
            patterns[_LISTED] = self.secrets.pattern
        counts: Counter[str] = Counter()
        for texts in self._texts.values():
            for old in (old for old, new in texts.items() if old != new):
                kinds = [kind for kind, pattern in patterns.items() if pattern.search(old)]
                is_label = self.secrets.labels is not None and self.secrets.labels.search(old)
                other = _LISTED if is_label else "path" if _PACKAGES.search(old) else "other value"
                counts.update(kinds or [other])
        return dict(counts)

    def left(self, *python: str) -> int:
        """Number of values of the environment and the command line that still stand in names that people gave.

        Args:
            python: places with names of Python functions, of which those of libraries do not count.
        """
        frames = (frame for text in self.results(*python) for frame in text.split(b";")) if python else ()
        own = (frame for frame in frames if not _of_library(frame))
        return self.secrets.left_in(b"\0".join((*(self.results(*self._named) if self._named else ()), *own)))

    def results(self, *kinds: str) -> list[bytes]:
        """All distinct resulting texts of these places; of all places if none is given."""
        return [new for place in kinds or self._texts for new in set(self._texts.get(place, {}).values())]

    def _without_folders(self, path: re.Match[bytes]) -> bytes:
        folders = path.group()
        if installed := _INSTALLED.match(folders):
            return folders[installed.end() :]
        return self._number(folders) + folders[-1:]

    def _without_packages(self, path: re.Match[bytes]) -> bytes:
        is_known = path["top"] in _LIBRARIES or MARK.fullmatch(path["top"].decode("utf-8", "replace"))
        return path.group() if is_known else self._number(path.group()) + path.group()[-1:]

    def _numbered(self, path: re.Match[bytes]) -> bytes:
        return self._number(path.group())

    def _number(self, path: bytes) -> bytes:
        """A numbered mark for each distinct path, so that ranges whose names differ by a path stay different."""
        return self._paths.setdefault(path, b"[path %d]" % (len(self._paths) + 1))


def texts_in(value: object) -> Iterator[str]:
    """The texts in a JSON value, including names of members."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            pending += part.keys()
            pending += part.values()
        elif isinstance(part, list):
            pending += part
