/**
 * Kafka's two plugins of tiered storage (KIP-405) over Sediment's services: each call of the broker
 * is one call of a service, and nothing is decided here.
 */
package io.sediment.kafka;
