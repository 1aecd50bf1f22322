"""Extensions are found by name alone; what is unknown is refused with what there is."""

import pytest

from solrl_tasks.config.extensions import KINDS, UnknownExtensionError, find_extension, list_extensions, parse_options


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_extension_is_found_under_its_own_name(kind):
    extensions = list_extensions(kind)
    assert extensions
    for name, extension in extensions.items():
        assert find_extension(kind, name) is extension
        assert extension.version


@pytest.mark.parametrize("name", ["nosuch", "../escape", "base", "", "os"])
def test_an_unknown_name_lists_what_there_is(name):
    with pytest.raises(UnknownExtensionError, match="euler"):
        find_extension("sampler", name)


def test_ones_own_is_named_as_module_and_attribute():
    assert find_extension("sampler", "collections:OrderedDict").__name__ == "OrderedDict"
    with pytest.raises(UnknownExtensionError, match="nosuch"):
        find_extension("sampler", "collections:nosuch")


def test_an_unknown_option_is_named_with_those_allowed():
    with pytest.raises(ValueError, match=r"betta.*allowed are .*beta"):
        parse_options("objective", find_extension("objective", "nft"), {"betta": 1})
