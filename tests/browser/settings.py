"""The test project with a page for a browser: manifest static files, a strict policy with a nonce."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403

ROOT_URLCONF = "tests.browser.urls"
STATIC_URL = "/static/"
STATIC_ROOT = os.environ.get("VISIBILITY_TEST_STATIC_ROOT")
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"},
}
