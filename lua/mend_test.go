package lua

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
)

// mendRuns is a history of mend: n lines and all that a provider keeps beside them are
// damaged, each in a way of its own.
func mendRuns(t *testing.T, rdb redis.UniversalClient, prefix string, n int) []run {
	t.Helper()
	keys := []string{prefix + "!due", prefix + "!round", prefix + "!out", prefix + "!at", prefix + "!told", prefix + "!parked"}
	args := []any{1_800_057_700_000_000}
	_, err := rdb.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
		pipe.Set(context.Background(), keys[0], "text", 0)
		pipe.ZAdd(context.Background(), keys[1], redis.Z{Member: "no seat"})
		pipe.HSet(context.Background(), keys[2], "no place", "")
		pipe.HSet(context.Background(), keys[3], "S/0", "no seat", "#", "no number")
		pipe.HSet(context.Background(), keys[4], "P/0", "no pause")
		pipe.ZAdd(context.Background(), keys[5], redis.Z{Member: "no place"})
		for i := range n {
			line := fmt.Sprintf("%s/%d!line", prefix, i)
			pipe.ZAdd(context.Background(), line, redis.Z{Member: "no ticket"}, redis.Z{Member: ":a"})
			keys, args = append(keys, line), append(args, ":r")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return []run{{Mend, keys, args}, {Mend, keys, args}}
}
