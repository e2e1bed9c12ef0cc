"""Tables of measurements in the pages of docs/."""

from diffsim.runtime.files import write_text


def write_rows(page, mark, rows):
    """Put rows between a mark and the next empty line of a page.

    Args:
        page: the path of a page of Markdown.
        mark: a line of the page.
        rows: the new ones, as one text.
    """
    text = page.read_text(encoding="utf-8")
    start = text.index(mark) + len(mark)
    end = text.index("\n\n", start)
    write_text(page, f"{text[:start]}\n{rows}{text[end:]}")
