"""The Papers pages: figures that the papers print next to ours, computed by the search worker."""

import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from engine.reproduce import PAPERS, experiments
from webapp.accounts.forms import ForTeam
from webapp.accounts.models import OPERATORS, Team
from webapp.accounts.permissions import require_somewhere, visible_or_404
from webapp.common.asked_once import fresh_key
from webapp.common.figures import download
from webapp.computations import services
from webapp.computations.models import Computation, ComputationKind
from webapp.computations.pages import stop
from webapp.design import papers as selectors


class RunForm(ForTeam):
    """`what`: a paper or an experiment; empty: all. `names` holds the experiments once it is valid."""

    what = forms.CharField(required=False, max_length=40, widget=forms.HiddenInput)
    names: list[str]

    def clean_what(self) -> str:
        what = str(self.cleaned_data["what"])
        self.names = selectors.named(what)
        if not self.names:
            raise forms.ValidationError(f"{what} is neither a paper nor an experiment.")
        return what


@require_GET
def papers(request: HttpRequest) -> HttpResponse:
    """All papers: counts, the figures that differ, and how far the work is."""
    results = selectors.results(request.user)
    if request.GET.get("as") == "csv":
        return download(selectors.table(results).as_csv(), "text/csv", "papers.csv")
    rows = [row for result in results.values() for row in result["rows"]]
    differing = selectors.differing(results)
    context = _work(request) | {
        "found": results,
        "counts": selectors.counts(rows),
        "figures": len(rows),
        "experiments": len(experiments()),
        "headlines": differing[: selectors.HEADLINES],
        "others": differing[selectors.HEADLINES :],
        "papers": selectors.papers(results),
    }
    return render(request, "design/papers.html", context)


@require_GET
def paper(request: HttpRequest, name: str) -> HttpResponse:
    """One paper: every figure with what it assumes, and the plots."""
    if name not in PAPERS:
        raise Http404
    results = selectors.results(request.user)
    names = experiments()
    parts: list[dict[str, Any]] = [
        {"name": each, "title": names[each].title, "result": results.get(each)}
        for each in selectors.of_paper(name, names)
    ]
    for part in parts:
        if part["result"]:
            part["rows"] = [selectors.shown(row) for row in part["result"]["rows"]]
            part["by_order"] = any(row["by_order_text"] for row in part["rows"])
    rows = [row for part in parts for row in part.get("rows", ())]
    plots = {plot["name"]: plot for part in parts if part["result"] for plot in part["result"]["plots"]}
    context = _work(request) | {
        "paper": name,
        "label": selectors.LABELS[name],
        "parts": parts,
        "counts": selectors.counts(rows),
        "rows": rows,
        "plots": plots,
    }
    return render(request, "design/paper.html", context)


@require_GET
def computing(request: HttpRequest) -> HttpResponse:
    """How far the work is; once it has ended, or has gone on since ?done=, the page loads itself again."""
    context = _work(request)
    if not context["open"] or request.GET.get("done", str(context["done"])) != str(context["done"]):
        return HttpResponse(headers={"HX-Refresh": "true"})
    return render(request, "design/papers_computing.html", context)


def _work(request: HttpRequest) -> dict[str, Any]:
    open_ones = selectors.open_ones(request.user)
    return {
        "open": open_ones,
        "done": sum((row.progress or {}).get("done", 0) for row in open_ones),
        "ended": selectors.last_ended(request.user),
        "teams": Team.objects.with_role(request.user, OPERATORS),
        "key": fresh_key(),
    }


@require_POST
def run(request: HttpRequest) -> HttpResponse:
    """Ask the search worker for all figures, those of a paper, or one experiment."""
    require_somewhere(request.user)
    form = RunForm(request.POST, user=request.user)
    if not form.is_valid():
        messages.error(
            request,
            "Nothing was started. " + " ".join(str(text) for texts in form.errors.values() for text in texts),
        )
        return redirect("design:papers")
    what = form.cleaned_data["what"]
    services.start(
        request.user,
        team=form.cleaned_data["team"],
        kind=ComputationKind.PAPERS,
        name=f"Papers: {selectors.LABELS.get(what, what) or 'all'}",
        request={"experiments": form.names},
        key=form.cleaned_data["idempotency_key"],
    )
    of = next((paper for paper in PAPERS if what == paper or what.startswith(f"{paper}-")), None)
    return redirect("design:paper", name=of) if of else redirect("design:papers")


@require_POST
def cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """End the work; what is computed is kept."""
    rows = Computation.objects.of(ComputationKind.PAPERS).select_related("team")
    stop(request, visible_or_404(rows, request.user, pk=pk))
    return redirect("design:papers")
