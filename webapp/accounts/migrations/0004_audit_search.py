"""A trigram index for the audit's text search, made of what every PostgreSQL has: a function and a GIN index
over the array that it returns. And what the models changed besides.

The cost keeps the planner from calling the function row by row where the index can answer."""

from django.db import migrations, models

FUNCTION = """
CREATE FUNCTION accounts_trigrams(label text, message text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE COST 100000 AS $$
    SELECT array(
        SELECT DISTINCT substr(upper(part), place, 3)
        FROM (VALUES (label), (message)) AS parts(part), generate_series(1, length(part) - 2) AS place
    )
$$
"""
INDEX = """
CREATE INDEX accounts_auditentry_trigrams ON accounts_auditentry
USING gin (accounts_trigrams(object_label, message))
"""


class Migration(migrations.Migration):

    dependencies = [
        ("accounts", "0003_people"),
    ]

    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION accounts_trigrams(text, text)"),
        migrations.RunSQL(INDEX, "DROP INDEX accounts_auditentry_trigrams"),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["request_id"], name="accounts_au_request_6b7246_idx"),
        ),
        migrations.AlterModelManagers(name="user", managers=[]),
    ]
