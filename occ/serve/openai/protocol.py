"""Request bodies of OpenAI's API. Unknown fields and values are rejected by name.

Fields that are not defined here are rejected by name, and so are unsupported values.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from occ.generation.sampling import LARGEST

_TOP = 20  # maximum number of most probable tokens, as in OpenAI's API
# Fields of OpenAI's API without effect here: they concern accounts, storage and prices.
_IGNORED = frozenset(
    ["metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"]
)

# What chat templates get from the other fields, and from the server.
_OF_TEMPLATES = frozenset(["messages", "raise_exception", "self", "strftime_now", "tools"])


def _encodable(text: Any) -> Any:
    """Rejects half a surrogate pair, which JSON allows and UTF-8 does not."""
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text has half of a surrogate pair") from None
    return text


Text = Annotated[str, BeforeValidator(_encodable)]


class _Strict(BaseModel, extra="forbid"):
    @model_validator(mode="before")
    @classmethod
    def _without_ignored(cls, given: Any) -> Any:
        """Without fields that have no effect; null means that a field is not given, as in OpenAI's API."""
        if not isinstance(given, dict):
            return given
        return {k: v for k, v in given.items() if v is not None and k not in _IGNORED}


class StreamOptions(_Strict):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False


class JsonSchema(_Strict):
    """A schema that the answer matches."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict[str, Any], alias="schema")
    strict: bool | None = None


class ResponseFormat(_Strict):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("`json_schema` is missing")
        return self


class Sampled(_Strict):
    """Sampling parameters of all requests.

    The last ones are not in OpenAI's API, but in llama.cpp's and vLLM's.
    """

    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = None
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[int, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    typical_p: float = Field(1.0, gt=0, le=1)
    repetition_penalty: float = Field(1.0, ge=1 / LARGEST, le=LARGEST)

    def settings(self) -> dict[str, Any]:
        """The request's settings for `occ.generation.sampling.Sampling`."""
        names = (
            "top_p", "presence_penalty", "frequency_penalty", "top_k", "min_p", "typical_p", "repetition_penalty",
        )  # fmt: skip
        bias = {t: max(-100.0, min(100.0, b)) for t, b in (self.logit_bias or {}).items()}
        chosen = {"do_sample": self.temperature > 0, "temperature": self.temperature or 1.0, "logit_bias": bias}
        return chosen | {n: getattr(self, n) for n in names}


class Generation(Sampled):
    """Common fields of completions and chats."""

    model: str = ""
    n: int = Field(1, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=0)
    stop: Text | list[Text] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    grammar: Text | None = None  # in the form of GBNF or Lark
    regex: Text | None = None

    @property
    def stops(self) -> list[str]:
        """Texts at which to end."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @model_validator(mode="after")
    def _one_form(self) -> "Generation":
        form = self.response_format is not None and self.response_format.type != "text"
        if sum((form, self.grammar is not None, self.regex is not None)) > 1:
            raise ValueError("use one of `response_format`, `grammar` and `regex`")
        return self


class CompletionRequest(Generation):
    """POST /v1/completions."""

    prompt: Text | list[int] | list[Text] | list[list[int]]
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=_TOP)
    best_of: int | None = None
    suffix: str | None = None

    @model_validator(mode="after")
    def _possible(self) -> "CompletionRequest":
        if self.best_of not in (None, self.n):
            raise ValueError("`best_of` is not supported: it must equal `n`")
        if self.suffix:
            raise ValueError("`suffix` is not supported: the model continues texts")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt separately."""
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return [self.prompt]  # pyright: ignore[reportReturnType]
        return list(self.prompt)  # pyright: ignore[reportReturnType]


class Part(_Strict):
    """A part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    annotations: list[Any] | None = None  # answers come with these two, and are returned
    logprobs: list[Any] | None = None


class FunctionCall(_Strict):
    """A call that the model requested."""

    name: str
    arguments: Text = "{}"


class ToolCall(_Strict):
    """A function call with its name."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(_Strict):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[Part] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: Text | None = None
    annotations: list[Any] | None = None


class Function(_Strict):
    """A function that the model may call."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")
    description: Text | None = None
    parameters: dict[str, Any] = Field(default_factory=dict[str, Any])
    strict: bool | None = None


class Tool(_Strict):
    """A tool: a function."""

    type: Literal["function"] = "function"
    function: Function


class NamedFunction(_Strict):
    """A function by its name."""

    name: str


class NamedTool(_Strict):
    """The tool that must be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


class ChatRequest(Generation):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=_TOP)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])

    @model_validator(mode="after")
    def _possible(self) -> "ChatRequest":
        if own := sorted(_OF_TEMPLATES & self.chat_template_kwargs.keys()):
            raise ValueError(f"`chat_template_kwargs` has `{own[0]}`, which templates get from elsewhere")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("`top_logprobs` needs `logprobs`")
        names = [t.function.name for t in self.tools or ()]
        if len(set(names)) < len(names):
            raise ValueError("two of `tools` have the same name")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ValueError(f"`tool_choice` names `{self.tool_choice.function.name}`, which is not in `tools`")
        if self.tool_choice == "required" and not names:
            raise ValueError("`tool_choice` is `required`, but there are no `tools`")
        return self


class InputMessage(_Strict):
    """An item of the input of a response."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[Part]
    id: str | None = None
    status: str | None = None


class TextFormat(_Strict):
    """The format of a response: the fields of `ResponseFormat` in one object."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict[str, Any], alias="schema")
    strict: bool | None = None


class TextSettings(_Strict):
    """`text` of a response."""

    format: TextFormat = Field(default_factory=TextFormat)


class ResponseRequest(Sampled):
    """POST /v1/responses, for text only: nothing is stored, and no tools are called.

    The last fields are there for clients that send them always: they have the only value that is supported.
    """

    model: str = ""
    input: Text | Annotated[list[InputMessage], Field(min_length=1)]
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=0)
    stream: bool = False
    text: TextSettings = Field(default_factory=TextSettings)
    background: Literal[False] = False
    include: list[Any] = Field(default_factory=list[Any], max_length=0)
    parallel_tool_calls: bool = True
    tool_choice: Literal["auto", "none"] = "auto"
    tools: list[Any] = Field(default_factory=list[Any], max_length=0)
    top_logprobs: Literal[0] = 0
    truncation: Literal["disabled"] = "disabled"


class TokenizeRequest(_Strict):
    """POST /tokenize."""

    content: Text
    add_special: bool = True


class DetokenizeRequest(_Strict):
    """POST /detokenize."""

    tokens: list[int]


class EmbeddingRequest(_Strict):
    """POST /v1/embeddings."""

    input: Text | list[Text] | list[int] | list[list[int]]
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)

    @property
    def inputs(self) -> list[str | list[int]]:
        """Texts and tokens, one or several."""
        given = self.input
        if isinstance(given, str):
            return [given]
        tokens = [x for x in given if isinstance(x, int)]
        return [tokens] if tokens else [x for x in given if not isinstance(x, int)]


class RerankRequest(_Strict):
    """POST /v1/rerank, in the form of Jina's and Cohere's API."""

    query: Text
    documents: list[Text]
    model: str = ""
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False
