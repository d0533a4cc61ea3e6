"""What a tenant's key opens: the part of the OpenAI surface that the site can answer."""

from django.urls import path

from webapp.prefill import api

app_name = "v1"
urlpatterns = [
    path("models", api.models, name="models"),
    path("prefill/quote", api.prefill_quote, name="quote"),
    path("<path:rest>", api.unknown, name="unknown"),
]
