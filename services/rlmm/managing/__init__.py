"""The parts of SqlRemoteLogMetadataManager, theme by theme as services.api has them."""
