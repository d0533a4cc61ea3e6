"""What a tenant's key opens: the part of the OpenAI surface that the site can answer."""

from django.urls import path

from webapp.prefill import api
from webapp.prefill.gateway import batches, views

app_name = "v1"
urlpatterns = [
    path("models", api.models, name="models"),
    path("models/<path:name>", api.model, name="model"),
    path("prefill/quote", api.prefill_quote, name="quote"),
    path("completions", views.completions, name="completions"),
    path("chat/completions", views.chat_completions, name="chat-completions"),
    path("batches", batches.batches, name="batches"),
    path("", api.unknown, name="root"),
    path("<path:rest>", api.unknown, name="unknown"),
]
