import django.contrib.postgres.indexes
import webapp.common.search
from django.db import migrations

# Words end at a space or at ASCII punctuation. PL/pgSQL, because a function in SQL would be put into its query
# and its cost forgotten: with it the planner uses the index instead of calling the function for every row.
WORDS = r"""
CREATE FUNCTION search_words(value text) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE STRICT COST 100000 AS $$
BEGIN
    RETURN array_to_tsvector(array_remove(
        regexp_split_to_array(lower(value), '[\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e\s]+'), ''));
END
$$
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0001_initial'),
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.RunSQL(WORDS, "DROP FUNCTION search_words(text)"),
        migrations.AddIndex(
            model_name='team',
            index=django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name'), name='team_words'),
        ),
        migrations.AddIndex(
            model_name='user',
            index=django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('username', 'first_name', 'last_name', 'email'), name='user_words'),
        ),
    ]
