"""Usage events cannot be changed or deleted, by nobody: the database itself refuses."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION prefill_usage_is_written_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'usage events are written once: % of % is refused', TG_OP, OLD.request_id
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER prefill_usage_is_written_once BEFORE UPDATE OR DELETE ON prefill_usageevent
    FOR EACH ROW EXECUTE FUNCTION prefill_usage_is_written_once();
"""
BACK = """
DROP TRIGGER prefill_usage_is_written_once ON prefill_usageevent;
DROP FUNCTION prefill_usage_is_written_once();
"""


class Migration(migrations.Migration):
    dependencies = [("prefill", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
