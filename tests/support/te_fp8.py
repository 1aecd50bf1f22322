"""An engine on Transformer Engine that Hopper can run: all of ``nvfp4`` but its recipe."""

from solrl_tasks.engines.te_engine import TransformerEngine
from solrl_tasks.engines.te_layer import Recipe


class FP8Engine(TransformerEngine):
    name = "te-fp8"
    version = "1"

    @classmethod
    def numerics(cls, options, device_class):
        return {}

    def _choose_recipe(self):
        return Recipe("fp8", lambda recipes: recipes.Float8CurrentScaling(), row_multiple=8, feature_multiple=16)


def record_by_running(run, device):
    """For machines without CUDA graphs: a replay is a run on the kept inputs, into the outputs that were given away."""
    outputs = run()

    def replay():
        for kept, new in zip(outputs, run(), strict=True):
            kept.copy_(new)

    return replay, outputs
