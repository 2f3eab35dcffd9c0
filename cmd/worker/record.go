package main

import (
	"errors"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/demand"
)

// inRedis is the word for the record in Redis. A file of that name needs a path: ./redis.
const inRedis = "redis"

// givenRecord is what the flags say of the record of demand.
type givenRecord struct {
	to, sample string
	megabytes  int64
	part       float64 // of the tenants
}

func (g *givenRecord) flags(fs *pflag.FlagSet) {
	fs.StringVar(&g.to, "record", "", "record what tasks want and get, for \"worker limits replay\": in a `FILE` of this worker's own, or in the Redis of all workers: redis. "+
		"It has scopes, costs and times, and no payloads")
	fs.StringVar(&g.sample, "record-sample", "100%", "record a `PART` of the tenants, such as 10%, each with all tasks")
	fs.Int64Var(&g.megabytes, "record-mb", 1024, "how large the record may be, in `MB`. A full file takes no more; in Redis the oldest part goes")
}

// check reads the flags.
func (g *givenRecord) check() error {
	var faults []error
	percent, err := strconv.ParseFloat(strings.TrimSuffix(g.sample, "%"), 64)
	if g.part = percent / 100; err != nil || !strings.HasSuffix(g.sample, "%") || !(g.part > 0 && g.part <= 1) {
		faults = append(faults, cli.Errorf("-record-sample 10%", "-record-sample %q is not a percentage above 0%% and at most 100%%", g.sample))
	}
	if g.megabytes < 1 || g.megabytes > 1<<20 {
		faults = append(faults, cli.Errorf("-record-mb 1024", "-record-mb %d is not from 1 to %d", g.megabytes, 1<<20))
	}
	if g.to == "" && (g.sample != "100%" || g.megabytes != 1024) {
		faults = append(faults, cli.Errorf("-record FILE, or -record redis", "-record-sample and -record-mb need -record"))
	}
	return errors.Join(faults...)
}

// open returns what records, nil for nothing, and a function that closes the file.
func (g *givenRecord) open(rdb redis.UniversalClient, log *slog.Logger) (*demand.Recorder, func(), error) {
	out, done := io.Writer(nil), func() {}
	switch g.to {
	case "":
		return nil, done, nil
	case inRedis:
		out = demand.ToRedis(rdb, "", g.megabytes<<20)
	default:
		file, err := demand.OpenFile(g.to, g.megabytes<<20)
		switch {
		case errors.Is(err, demand.ErrFull):
			return nil, nil, cli.Errorf("another -record FILE, or a larger -record-mb", "-record %s has %d MB already", g.to, g.megabytes)
		case errors.Is(err, demand.ErrNoRecord):
			return nil, nil, cli.Errorf("another -record FILE, which may be new", "-record: %s has something else than a record, which stays as it is", g.to)
		case err != nil:
			return nil, nil, &cli.Error{What: "-record: cannot write the record: " + err.Error(), Try: "a -record FILE in a directory that this user may write", Err: err}
		}
		out, done = file, func() { _ = file.Close() } // each block was written
	}
	record, err := demand.NewRecorder(demand.Config{Out: out, Sample: g.part, Logger: log})
	return record, done, err
}
