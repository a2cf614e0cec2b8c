"""Signals of this app; receivers never break it (`send_robust`).

| signal | sender | keyword arguments |
|---|---|---|
| became_visible, became_hidden | data type name | resource |
| user_online, user_offline | "presence" | user_id |
| snapshot_built | data type name | resource, version, seconds, event_at |
| event_processed | "gate" | event_ids, decision, seconds, error |
| pressure_changed | lane name | stage, previous |
| slo_alert | data type name | state, burn_rate, attained |
"""

from __future__ import annotations

from django.dispatch import Signal

became_visible = Signal()
became_hidden = Signal()
user_online = Signal()
user_offline = Signal()
snapshot_built = Signal()
event_processed = Signal()
pressure_changed = Signal()
slo_alert = Signal()
