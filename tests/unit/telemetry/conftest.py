"""Readers of what telemetry has measured."""

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry


@pytest.fixture
def registry():
    """A registry of Prometheus, which describes its collectors itself."""
    return CollectorRegistry(auto_describe=True)


@pytest.fixture
def value(registry):
    """A function that reads a metric's value; None if there is no such series."""

    def value(name, **labels):
        return registry.get_sample_value(f"zeroeventhub_{name}", labels)

    return value


@pytest.fixture
def reader():
    """A reader of OpenTelemetry's metrics."""
    reader = InMemoryMetricReader()
    yield reader
    reader.shutdown()


@pytest.fixture
def spans():
    """An exporter that keeps spans, and the provider that has it."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter, provider
    provider.shutdown()


@pytest.fixture
def collected(reader):
    """A function that collects OpenTelemetry's metrics, by the ends of their names."""

    def collected():
        data = reader.get_metrics_data()
        return {
            metric.name.split(".", 2)[2]: metric
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    return collected
