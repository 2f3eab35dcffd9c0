package usage

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onAll runs a test on a real Redis, on miniredis and on a cluster, each under a prefix of its own.
func onAll(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient, prefix string)) {
	t.Helper()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"Redis": redistest.Client(t), "miniredis": mini, "a cluster": redistest.Cluster(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, rdb, redistest.Prefix(t))
		})
	}
}
