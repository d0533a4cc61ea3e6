"""Settings: one file, everything that differs between installations from the environment.

MERIDIAN_ENV=development (default; the demo too) answers on this machine only and makes its own secret
key under var/. MERIDIAN_ENV=production wants the key and the host names given, and HTTPS.
"""

import gc
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from csp.constants import NONCE, NONE, SELF

from webapp.common import environment as env
from webapp.common.logs import configure_structlog, logging_config
from webapp.servers.places import var_folder

# What imports make stays: looking through it again and again is an eighth of the CPU of a start.
gc.set_threshold(100_000, 20, 20)

ROOT = env.ROOT
VAR = var_folder()
PRODUCTION = env.choice("MERIDIAN_ENV", "development", ["development", "production"]) == "production"
DEBUG = env.flag("MERIDIAN_DEBUG", False)

if PRODUCTION:
    SECRET_KEY = env.required(
        "MERIDIAN_SECRET_KEY", "production needs a key of its own: 50 random characters"
    )
    ALLOWED_HOSTS = env.required("MERIDIAN_HOSTS", "the site's host names, separated by commas").split(",")
else:
    SECRET_KEY = os.environ.get("MERIDIAN_SECRET_KEY") or env.kept_secret(VAR / "secret_key")
    ALLOWED_HOSTS = env.words("MERIDIAN_HOSTS", ["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.words(
    "MERIDIAN_ORIGINS", [f"https://{h}" for h in ALLOWED_HOSTS] if PRODUCTION else []
)

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "axes",
    "channels",
    "csp",
    "django_filters",
    "django_htmx",
    "django_structlog",
    "django_tables2",
    "webapp.accounts",
    "webapp.inventory",
    "webapp.computations",
    "webapp.planning",
    "webapp.placement",
    "webapp.schedules",
    "webapp.design",
    "webapp.traces",
    "webapp.jobs",
    "webapp.live",
    "webapp.prefill",
    "webapp.site",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "webapp.staticfiles.StaticFilesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "webapp.accounts.middleware.ReadersMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "axes.middleware.AxesMiddleware",  # last: it answers for a locked-out login
]

# Of /v1/: who calls there has a key; sessions, forms and pages would take a third of the CPU of a call.
API_MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
]

ROOT_URLCONF = "webapp.urls"
ASGI_APPLICATION = "webapp.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "webapp.accounts.context.site",
            ],
            "builtins": ["webapp.common.markup"],
        },
    }
]


def _servers() -> tuple[str, str, str]:
    """DATABASE_URL, VALKEY_URL and why there are none (empty where there are)."""
    given = os.environ.get("DATABASE_URL", ""), os.environ.get("VALKEY_URL", "")
    if all(given):
        return *given, ""
    try:
        from webapp.servers import endpoints

        database_url, valkey_url = endpoints()
    except Exception as error:  # commands that need no server (check, makemigrations) go on without
        return *given, str(error)
    return database_url, valkey_url, ""


DATABASE_URL, VALKEY_URL, SERVERS_ERROR = _servers()
NODE_VALKEY_URL = os.environ.get("MERIDIAN_NODE_VALKEY_URL") or VALKEY_URL  # the broker as nodes reach it
# Without servers the backend is Django's dummy, and webapp.checks says what to start.
DATABASES: dict[str, Any] = {
    "default": env.database(DATABASE_URL, pool_size=int(env.number("MERIDIAN_DB_POOL", 12, least=1)))
    if DATABASE_URL
    else {}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [VALKEY_URL or "redis://127.0.0.1:6379/0"], "prefix": "live"},
    }
}
# Counters that only save repeated work (health, navigation): per process is enough.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
PASSWORD_RESET_TIMEOUT = 24 * 3600  # links for a new password, seconds

AXES_FAILURE_LIMIT = 8
AXES_COOLOFF_TIME = timedelta(minutes=10)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]  # one person's typing locks nobody else out
AXES_RESET_ON_SUCCESS = True
AXES_LOCKOUT_CALLABLE = "webapp.accounts.views.locked_out"
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False  # the wait that the page names is the wait
AXES_ENABLE_ACCESS_FAILURE_LOG = False
AXES_DISABLE_ACCESS_LOG = True  # logins are rows of the audit
AXES_VERBOSE = False
# The address as the server knows it: axes would read X-Forwarded-For of anybody.
AXES_CLIENT_IP_CALLABLE = "webapp.accounts.views.address_of"
# Within ten minutes, besides axes' own lock of one name from one address.
WRONG_PASSWORDS_PER_ADDRESS = int(env.number("MERIDIAN_WRONG_PASSWORDS_PER_ADDRESS", 40, least=1))
WRONG_PASSWORDS_PER_NAME = int(env.number("MERIDIAN_WRONG_PASSWORDS_PER_NAME", 80, least=1))
WRONG_LINKS_PER_ADDRESS = int(env.number("MERIDIAN_WRONG_LINKS_PER_ADDRESS", 30, least=1))
# Within an hour and within a minute.
RESET_MAILS_PER_ADDRESS = int(env.number("MERIDIAN_RESET_MAILS_PER_ADDRESS", 10, least=1))
WRONG_KEYS_PER_ADDRESS = int(env.number("MERIDIAN_WRONG_KEYS_PER_ADDRESS", 60, least=1))

# Without a mail server nothing is sent: invitations and new passwords go by links that admins hand on.
EMAIL_HOST = os.environ.get("MERIDIAN_EMAIL_HOST", "")
EMAIL_PORT = int(env.number("MERIDIAN_EMAIL_PORT", 587, least=1))
EMAIL_HOST_USER = os.environ.get("MERIDIAN_EMAIL_USER", "")
EMAIL_HOST_PASSWORD = os.environ.get("MERIDIAN_EMAIL_PASSWORD", "")
EMAIL_USE_TLS = env.flag("MERIDIAN_EMAIL_TLS", True)
EMAIL_TIMEOUT = 10  # seconds
DEFAULT_FROM_EMAIL = os.environ.get("MERIDIAN_EMAIL_FROM") or f"meridian@{ALLOWED_HOSTS[0]}"

LANGUAGE_CODE = "en-gb"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
# An image collects its files when it is built; var/ is a volume there, which would hide them.
STATIC_ROOT = Path(os.environ.get("MERIDIAN_STATIC_ROOT") or VAR / "staticfiles")
STATICFILES_DIRS = [ROOT / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "webapp.staticfiles.PlotlyFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "webapp.staticfiles.ManifestStorage"
        if PRODUCTION
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}
# Elsewhere than in production files are served from where they lie; no collectstatic before the first page.
WHITENOISE_USE_FINDERS = not PRODUCTION
if not PRODUCTION:
    STATIC_ROOT.mkdir(parents=True, exist_ok=True)  # whitenoise warns where it is not there
WHITENOISE_AUTOREFRESH = DEBUG

DJANGO_TABLES2_TEMPLATE = "components/table.html"
FILTERS_EMPTY_CHOICE_LABEL = "Any"

# No inline script runs; where a page needs one it carries the request's nonce. WebSockets fall under 'self'.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "img-src": [SELF, "data:", "blob:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "manifest-src": [SELF],
        "worker-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_NAME = "meridian_session"
CSRF_COOKIE_NAME = "meridian_csrf"
SESSION_COOKIE_AGE = 14 * 24 * 3600
SESSION_COOKIE_SAMESITE = "Lax"
if PRODUCTION:
    SECURE_SSL_REDIRECT = env.flag("MERIDIAN_SSL_REDIRECT", True)
    SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^health$"]
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    SESSION_COOKIE_NAME = "__Host-meridian_session"
    CSRF_COOKIE_NAME = "__Host-meridian_csrf"

LOGGING = logging_config(json_lines=PRODUCTION, level=os.environ.get("MERIDIAN_LOG", "INFO").upper())
configure_structlog()
DJANGO_STRUCTLOG_STATUS_4XX_LOG_LEVEL = 20  # a mistyped address is no warning

# The demo (seed_demo leaves the file) names its logins on the login page.
DEMO = not PRODUCTION and env.flag("MERIDIAN_DEMO", (VAR / "demo").exists())

# Whom /.well-known/security.txt names.
SECURITY_CONTACT = env.contacts("MERIDIAN_SECURITY_CONTACT")

# Who may say in X-Forwarded-For and X-Forwarded-Proto for whom they ask; uvicorn reads these headers.
PROXIES = env.networks("MERIDIAN_PROXY_IPS")
# Where KV caches may be sent, as requests name receivers (webapp/prefill/gateway/receivers.py).
DECODE_NETWORKS = env.networks("MERIDIAN_DECODE_NETWORKS")

# What the web process takes from whoever asks, before it knows who that is (webapp/edge).
LARGEST_BODY_BYTES = int(env.number("MERIDIAN_BODY_KB", 256, least=16) * 1e3)
LARGEST_DOCUMENT_BYTES = int(env.number("MERIDIAN_DOCUMENT_KB", 2_500, least=16) * 1e3)
# A trace may be longer: it goes through files on the disk, not through memory (webapp/edge/uploads.py).
LARGEST_TRACE_BYTES = int(env.number("MERIDIAN_TRACE_MB", 200, least=1) * 1e6)
# What a team's traces may take of the database, and the analysis of one of memory.
TRACES_OF_TEAM_BYTES = int(env.number("MERIDIAN_TEAM_TRACES_MB", 2_000, least=1) * 1e6)
TRACE_MEMORY_BYTES = int(env.number("MERIDIAN_TRACE_MEMORY_MB", 4_000, least=500) * 1e6)
DATA_UPLOAD_MAX_NUMBER_FILES = 200  # the form of traces says what it takes
# Django's own, of forms and files: only a trace that came so far is spooled to a disk.
DATA_UPLOAD_MAX_MEMORY_SIZE = FILE_UPLOAD_MAX_MEMORY_SIZE = max(LARGEST_BODY_BYTES, LARGEST_DOCUMENT_BYTES)
HEAD_TIMEOUT_S = env.number("MERIDIAN_HEAD_TIMEOUT_S", 10, least=1)
BODY_TIMEOUT_S = env.number("MERIDIAN_BODY_TIMEOUT_S", 30, least=1)
SEND_TIMEOUT_S = env.number("MERIDIAN_SEND_TIMEOUT_S", 60, least=1)
MOST_CONNECTIONS = int(env.number("MERIDIAN_CONNECTIONS", 900, least=10))
CONNECTIONS_PER_ADDRESS = int(env.number("MERIDIAN_CONNECTIONS_PER_ADDRESS", 400, least=1))
SOCKETS_PER_PERSON = int(env.number("MERIDIAN_SOCKETS_PER_PERSON", 50, least=1))
STREAMS_PER_TENANCY = int(env.number("MERIDIAN_STREAMS_PER_TENANCY", 200, least=1))

# How long before the site acts, seconds.
NODE_SILENT_AFTER_S = env.number("MERIDIAN_NODE_SILENT_S", 10, least=4)  # heartbeats come every 2 s
DISPATCH_AGAIN_AFTER_S = 6.0  # no rank has answered: the message was lost
START_TIMEOUT_S = env.number("MERIDIAN_START_TIMEOUT_S", 120, least=10)
STOP_GRACE_S = 2.0  # a stopped run ends within 5 s, kill included
# When a stop is looked at again: a node that lives has been heard of by then; ranks have been killed by then.
STOP_LOOK_AGAIN_S = (2.5, 4.0)
# Raw spans are kept for so many iterations of a run, rollups for good.
KEEP_SPAN_ITERATIONS = int(env.number("MERIDIAN_KEEP_ITERATIONS", 200, least=10))
# What prefill coordinators report by the second is kept for so long, by the minute for good.
KEEP_PREFILL_S = int(env.number("MERIDIAN_KEEP_PREFILL_S", 3_600, least=120))
# What one node may hold of the broker before its reports are refused; its agent keeps them on disk.
NODE_BROKER_BYTES = env.number("MERIDIAN_NODE_BROKER_MB", 64, least=1) * 1e6
# With less room for what the site writes, /readyz and the overview say so.
LEAST_FREE_BYTES = env.number("MERIDIAN_LEAST_FREE_MB", 200, least=1) * 1e6
# Log lines are kept for so many lines of a rank.
KEEP_LOG_LINES = int(env.number("MERIDIAN_KEEP_LOG_LINES", 5_000, least=100))
# A run that waits for something that does not come by itself is an alarm after so many minutes.
PENDING_ALARM_MIN = env.number("MERIDIAN_PENDING_ALARM_MIN", 5, least=1)
