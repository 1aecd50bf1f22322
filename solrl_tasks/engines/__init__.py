"""Rollout engines: the same policy sampled at different precisions.

An engine owns a twin of the frozen base network in which matrix multiplications are layers of its own, and is
brought to a policy by ``sync``. One module is one engine, found by its name from the recipe:
``nvfp4-emulated`` is the class ``ENGINE`` of ``nvfp4_emulated.py``. ``base.py`` has the interface and the
records, ``merging.py`` what all engines share, ``execution.py`` how a twin is compiled, ``layers.py`` and the modules
named after formats the layers that they put into the twin, ``numerics`` the number formats in plain torch, ``kernels``
the same for accelerators, and ``fusions`` the blocks of known networks around them.

To add an engine, write one module with a subclass of ``merging.MergingEngine`` that says where it can run
(``available``), what its results depend on (``numerics``) and which layer stands in for a given one
(``_replacement``), and set ``ENGINE`` to it.
"""
