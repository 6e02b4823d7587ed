"""The settings: one class for each section, each setting declared once with its bounds, default and description.

`load_settings` fills them. Error messages and docs/configuration.md are made from the same declarations.
"""

from draftd.settings.distributed import DistributedSettings
from draftd.settings.fallback import TIMESTAMP_HEADER, AnnotationSettings, FallbackSettings, WebhookSettings
from draftd.settings.kinds import is_loopback, secrets_of, state_dir
from draftd.settings.load import UNSET, Settings, describe_settings, load_settings, shown
from draftd.settings.machine import CostSettings, HardwareSettings, LogSettings, TelemetrySettings
from draftd.settings.remote import RemoteSettings, VerifySettings
from draftd.settings.serving import EngineSettings, FlagSettings, ModelSettings, ServerSettings
