"""Tables in Markdown."""

from fedpca_flwr.figures import markdown


def test_a_table_is_its_head_and_its_lines():
    text = "| name | number |\n| --- | --- |\n| a | 1 |\n| b | 2.5 |"
    assert markdown.table(["name", "number"], [["a", 1], ["b", 2.5]]) == text
    assert "\n".join([markdown.head(["name", "number"]), markdown.row(["a", 1]), markdown.row(["b", 2.5])]) == text
