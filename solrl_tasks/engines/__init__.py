"""Rollout engines: the same policy sampled at different precisions.

An engine owns a twin of the frozen base network in which matrix multiplications are layers of its own, and is
brought to a policy by ``sync``. One module is one engine, found by its name from the recipe:
``nvfp4-emulated`` is the class ``ENGINE`` of ``nvfp4_emulated.py``. ``base.py`` has the interface and the
records, ``merging.py`` what all engines share, ``layers.py`` and ``nvfp4_layer.py`` the layers that they put
into the twin, and ``numerics`` the number formats.

To add an engine, write one module with a subclass of ``merging.MergingEngine`` that says where it can run
(``available``), what its results depend on (``numerics``) and which layer stands in for a given one
(``_replacement``), and set ``ENGINE`` to it.
"""
