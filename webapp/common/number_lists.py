"""Form fields that hold one number or several."""

from typing import Any

from django import forms

from webapp.common.markup import plain


class Numbers(forms.CharField):
    """One number, or several (`most`) separated by commas or blanks."""

    def __init__(self, *, whole: bool = False, most: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.whole, self.most = whole, most

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        if not text:
            return None
        parts = text.replace(",", " ").split()
        if self.most and len(parts) > self.most:
            raise forms.ValidationError(f"Enter at most {self.most} values.")
        try:
            numbers = [int(part) if self.whole else float(part) for part in parts]
        except ValueError:
            kind = "whole numbers" if self.whole else "numbers"
            raise forms.ValidationError(f"Enter {kind} separated by commas, such as 1, 2, 4.") from None
        return numbers

    def prepare_value(self, value: Any) -> Any:
        return plain(value) if isinstance(value, list | tuple) else value


class Counts(Numbers):
    """Counts as the engine reads them: one, or a list of several, each at least 1."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(whole=True, **kwargs)

    def to_python(self, value: Any) -> Any:
        numbers = super().to_python(value)
        if numbers and min(numbers) < 1:
            raise forms.ValidationError("Enter whole numbers of at least 1.")
        return one_or_many(numbers)


def one_or_many(numbers: Any) -> Any:
    """What the engine reads: a number for a list of one, else what is given; None for nothing."""
    if not numbers:
        return None
    return numbers[0] if isinstance(numbers, list) and len(numbers) == 1 else numbers
