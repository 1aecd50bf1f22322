"""Pretrained pipelines behind one interface, and the LoRA policy on top of them."""
