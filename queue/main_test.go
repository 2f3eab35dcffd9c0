package queue_test

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // go-redis prints each failed dial by itself
	os.Exit(redistest.Main(m))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
