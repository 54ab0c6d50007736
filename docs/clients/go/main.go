// Command read prints a partition's records from the tier and the broker's disk: read LISTENER TOPIC PARTITION.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	listener, topic := os.Args[1], os.Args[2]
	number, err := strconv.ParseInt(os.Args[3], 10, 32)
	if err != nil {
		log.Fatal(err)
	}
	partition := int32(number)
	// There are no consumer groups: a program assigns partitions, and keeps its offsets.
	client, err := kgo.NewClient(
		kgo.SeedBrokers(listener),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			topic: {partition: kgo.NewOffset().AtStart()},
		}),
		// So that the end is seen although the last offsets are of control records.
		kgo.KeepControlRecords(),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	ends, err := kadm.NewClient(client).ListCommittedOffsets(ctx, topic)
	if err != nil {
		log.Fatal(err)
	}
	end, _ := ends.Lookup(topic, partition)
	for next := int64(0); next < end.Offset; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			next = record.Offset + 1
			if !record.Attrs.IsControl() {
				fmt.Println(record.Offset, record.Timestamp.UnixMilli(), length(record.Key), length(record.Value))
			}
		})
	}
}

func length(bytes []byte) int {
	if bytes == nil {
		return -1
	}
	return len(bytes)
}
