"""The recipe of a run as one frozen tree.

Everything that can change a result stands here. Options of an extension (engine, objective, reward, ...) are plain
JSON in the recipe and are validated by the extension's own ``Options`` when the run is prepared.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from solrl_tasks.config.base import Frozen

Options = dict[str, JsonValue]
Positive = Annotated[int, Field(ge=1)]
Resolution = Annotated[int, Field(ge=16, le=4096)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Dtype = Literal["auto", "float32", "bfloat16"]
Chunk = Annotated[int, Field(ge=1, le=100_000)] | Literal["auto"]
Keep = Literal["none", "thumbnails", "lossless"]
Normalize = Literal["none", "group", "pool"]


class ModelSpec(Frozen):
    """Which pipeline is aligned, and how it is conditioned.

    ``source`` is ``embedded``, ``random:NAME``, a diffusers folder, or a hub id. ``resolution`` is the side of the
    square image in pixels. ``guidance`` is the value fed to models with a guidance embedding and ignored by the others;
    ``guidance_scale`` above 1 is classifier-free guidance, against the empty or the ``negative_prompt``.
    ``shift`` replaces the pipeline's own sigma grid by equal steps that are shifted so; 1 is the plain linear grid.
    ``t5`` and ``complex_human_instruction`` belong to one family each, and setting them elsewhere is an error.
    ``text_encoders`` says where the text encoders wait between uses and changes no result.
    """

    family: str = "flux"
    source: str = "embedded"
    revision: str | None = None
    resolution: Resolution = 64
    guidance: Annotated[float, Field(ge=0.0, le=30.0)] = 1.0
    guidance_scale: Annotated[float, Field(ge=1.0, le=30.0)] = 1.0
    negative_prompt: str = ""
    shift: Annotated[float, Field(gt=0, le=100)] | None = None
    max_sequence_length: Annotated[int, Field(ge=1, le=1024)] = 16
    t5: bool = True
    complex_human_instruction: bool = False
    dtype: Dtype = "auto"
    text_dtype: Dtype = "auto"
    vae_dtype: Dtype = "auto"
    vae_execution: Literal["auto", "compiled", "eager"] = "auto"
    text_encoders: Literal["keep", "offload", "release"] = "offload"

    @model_validator(mode="after")
    def _negative_prompt_counts(self) -> Self:
        if self.negative_prompt and self.guidance_scale == 1.0:
            raise ValueError(
                f"negative_prompt is {self.negative_prompt!r}, but guidance_scale 1 is no guidance: raise the scale or "
                "drop the negative prompt"
            )
        return self


class ExtensionSpec(Frozen):
    """An extension by name, with its own options."""

    name: str
    options: Options = Field(default_factory=dict)


class SamplingSpec(Frozen):
    """How latents are sampled: engine, solver, number of steps, images computed together.

    ``resolution`` is the side of a sampled image in pixels, a whole part of the model's; None is the model's own.
    """

    engine: ExtensionSpec
    sampler: str = "dpm2"
    steps: Annotated[int, Field(ge=1, le=200)]
    chunk: Chunk = "auto"
    resolution: Resolution | None = None


class ExploreSpec(SamplingSpec):
    """The cheap look at every candidate of a prompt."""

    engine: ExtensionSpec = ExtensionSpec(name="nvfp4-emulated")
    steps: Annotated[int, Field(ge=1, le=200)] = 6
    candidates: Annotated[int, Field(ge=2, le=100_000)] = 96
    store_images: Keep = "none"
    reuse: Literal["exact", "compatible"] = "exact"


class RegenerateSpec(SamplingSpec):
    """The precise sampling of the kept seeds, and of held-out images: never at another resolution."""

    engine: ExtensionSpec = ExtensionSpec(name="bf16")
    steps: Annotated[int, Field(ge=1, le=200)] = 10

    @model_validator(mode="after")
    def _of_the_models_size(self) -> Self:
        if self.resolution is not None:
            raise ValueError(
                f"resolution is {self.resolution}, but what is trained on and what is measured has the resolution of "
                "the model: drop it. Only explore.resolution can differ; model.resolution sets all of them"
            )
        return self


class RewardSpec(ExtensionSpec):
    """One reward and its weight in the score that selects and trains.

    ``normalize`` puts it on a common scale before the sum: the mean and spread of its explored ``group``, or of the
    whole ``pool`` of an iteration. Where ``use`` names the extension, ``name`` is a label of one's own: so one
    extension can stand in a recipe several times with different options.
    """

    use: str | None = None
    weight: float = 1.0
    normalize: Normalize = "none"
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None


class SelectSpec(Frozen):
    """How many seeds of a prompt are kept, and by which rule."""

    rule: str = "best_worst"
    keep: Annotated[int, Field(ge=2, le=100_000)] = 24


class LoraSpec(Frozen):
    """The trained adapter. ``targets`` names a preset of the family."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 32
    alpha: Annotated[float, Field(gt=0)] = 64.0
    targets: str = "all"
    seed: int = 0


class OptimizerSpec(Frozen):
    """AdamW on the current LoRA, with clipping of the global gradient norm."""

    lr: Annotated[float, Field(gt=0, le=1)] = 3e-4
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    grad_clip: Annotated[float, Field(gt=0)] = 1.0


class OldPolicySpec(Frozen):
    """How the sampling policy follows the trained one after an iteration.

    ``copy``, ``ramp`` and ``delayed`` are types 0, 1 and 2 of DiffusionNFT; ``constant`` keeps ``decay`` of the old.
    ``by_iteration`` is RAM's.
    """

    schedule: Literal["copy", "ramp", "delayed", "constant", "by_iteration"] = "ramp"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.0


class UpdateSpec(Frozen):
    """How the kept samples become the next policy.

    One iteration makes ``optimizer_steps`` steps. A step covers all samples of the iteration at ``times_per_sample``
    noise levels each, accumulated over micro-batches of ``micro_batch`` rows. ``gradient_checkpointing`` keeps one
    activation a block and computes the rest again on the way back: less memory for about a third more time.

    An advantage is a reward minus a mean, ``advantage_mean``, over a spread, ``advantage_std``; ``advantage`` says of
    which rewards both are.
    """

    objective: ExtensionSpec = ExtensionSpec(name="nft")
    advantage: Literal["kept", "pool"] = "kept"
    advantage_mean: Literal["group", "leave_one_out"] = "group"
    advantage_std: Literal["all", "group"] = "all"
    lora: LoraSpec = LoraSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    optimizer_steps: Annotated[int, Field(ge=1, le=1000)] = 1
    times_per_sample: Annotated[int, Field(ge=1, le=200)] = 1
    micro_batch: Annotated[int, Field(ge=1)] = 24
    gradient_checkpointing: bool = False
    old: OldPolicySpec = OldPolicySpec()


class EvaluateSpec(Frozen):
    """The held-out measurement: the same prompts and seeds every time, sampled from the eval EMA.

    ``every`` counts iterations; 0 switches evaluation off. ``prompts`` is taken from the head of the held-out set.
    ``guidance`` and ``guidance_scale`` are the model's where they are left out. ``features`` measure diversity and the
    distance to the base.
    """

    every: Annotated[int, Field(ge=0)] = 1
    prompts: Positive = 32
    seeds: Positive = 4
    seed: int = 20_000
    sampling: RegenerateSpec = RegenerateSpec()
    guidance: Annotated[float, Field(ge=0.0, le=30.0)] | None = None
    guidance_scale: Annotated[float, Field(ge=1.0, le=30.0)] | None = None
    rewards: tuple[RewardSpec, ...] = ()
    features: ExtensionSpec = ExtensionSpec(name="pixels")
    store_images: Keep = "thumbnails"


class AuditSpec(Frozen):
    """Whole groups regenerated now and then, to know how far the proxy can be trusted. ``every`` 0 is never."""

    every: Annotated[int, Field(ge=0)] = 10
    prompts: Positive = 1


class PromptSource(Frozen):
    """Prompts with what has to be said about where they stand.

    ``source`` is as for a plain name: a built-in set, a file, a folder of data files, or ``hf:OWNER/NAME``. ``split``,
    ``subset`` and ``revision`` are those of a dataset. ``column`` holds the texts, and ``metadata`` names the columns
    that go to the rewards: all others where it is left out.
    """

    source: Annotated[str, Field(min_length=1)]
    split: str | None = None
    subset: str | None = None
    column: Annotated[str, Field(min_length=1)] = "prompt"
    metadata: tuple[str, ...] | None = None
    revision: str | None = None


class HeldoutSplit(Frozen):
    """Held-out prompts taken from the training prompts: each by a hash of ``seed`` and its own text alone."""

    fraction: Annotated[float, Field(gt=0, lt=1)]
    seed: int = 0


class PromptsSpec(Frozen):
    """Where prompts come from; no held-out prompt may be a training prompt.

    ``without`` leaves out of ``train`` what such a split holds out, where ``heldout`` names a source of its own.
    """

    train: str | PromptSource = "scenes:train"
    heldout: str | PromptSource | HeldoutSplit = "scenes:heldout"
    without: HeldoutSplit | None = None
    per_iteration: Positive = 8

    @model_validator(mode="after")
    def _one_split(self) -> Self:
        if self.without is not None and isinstance(self.heldout, HeldoutSplit):
            raise ValueError("prompts.heldout is a split already: drop prompts.without")
        return self


class TrackingSpec(Frozen):
    """What is shown besides metrics. ``grid_prompts`` rows stand in the image grid of an iteration."""

    experiment: str = "solrl"
    grid_prompts: Annotated[int, Field(ge=0, le=32)] = 3
    alarm_rho: Annotated[float, Field(ge=-1, le=1)] = 0.2


class WorkersSpec(Frozen):
    """Where the work is done. It changes no result and stands in no key: a run may go on with other workers.

    ``inline`` is one device in the process of the run. ``ray`` is ``actors`` processes of one device each, ``auto`` as
    many as the cluster has GPUs, or one where it has none; on the cluster at ``address``, else on one that is started
    on this machine for as long as the run is open. ``cpus`` are set aside for each. Actors that die are replaced
    ``replacements`` times, and waited for ``patience`` seconds. One that is at a block, an update or a call for more
    than ``stall`` seconds is taken for hung, ended and replaced: ``auto`` learns from what was done so far, anew in
    each process; ``never`` waits without end.
    """

    kind: Literal["inline", "ray"] = "inline"
    actors: Annotated[int, Field(ge=1, le=10_000)] | Literal["auto"] = "auto"
    cpus: Annotated[float, Field(gt=0, le=1000)] = 1.0
    address: Annotated[str, Field(min_length=1)] | None = None
    replacements: Annotated[int, Field(ge=0, le=10_000)] = 3
    patience: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    stall: Annotated[float, Field(gt=0, le=2_592_000)] | Literal["auto", "never"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, given: Any) -> Any:
        return {"kind": given} if isinstance(given, str) else given


class Recipe(Frozen):
    """A whole run. See ``docs/configuration.md`` for every field."""

    name: str = "recipe"
    seed: int = 42
    iterations: Positive = 10
    model: ModelSpec = ModelSpec()
    prompts: PromptsSpec = PromptsSpec()
    rewards: Annotated[tuple[RewardSpec, ...], Field(min_length=1)] = (RewardSpec(name="scene"),)
    explore: ExploreSpec = ExploreSpec()
    select: SelectSpec = SelectSpec()
    regenerate: RegenerateSpec = RegenerateSpec()
    update: UpdateSpec = UpdateSpec()
    evaluate: EvaluateSpec = EvaluateSpec()
    audit: AuditSpec = AuditSpec()
    tracking: TrackingSpec = TrackingSpec()
    # Left out of all that is recorded, compared or hashed.
    workers: Annotated[WorkersSpec, Field(exclude=True)] = WorkersSpec()

    @model_validator(mode="after")
    def _keep_fits(self) -> Self:
        if self.select.keep > self.explore.candidates:
            raise ValueError(
                f"select.keep is {self.select.keep}, more than explore.candidates ({self.explore.candidates}): "
                "keep fewer seeds or explore more candidates"
            )
        return self

    @model_validator(mode="after")
    def _rewards_are_distinct(self) -> Self:
        names = [reward.name for reward in self.rewards]
        if len(set(names)) < len(names):
            raise ValueError(f"rewards: a name stands twice in {names}: name each reward once and set its weight")
        if all(reward.weight == 0 for reward in self.rewards):
            raise ValueError("rewards: every weight is 0: at least one reward must count")
        return self
