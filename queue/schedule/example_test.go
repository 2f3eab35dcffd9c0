package schedule_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/test/redistest"
)

const reports = `
schedules:
  nightly-report:
    cron: "30 2 * * *"
    timezone: Europe/Berlin
    task: {type: report, scope: payments/acme, queue: example-schedule}
`

// Every process runs a Runner with the same file; each run is enqueued once.
func ExampleRunner() {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	file, err := schedule.Parse("schedules.yaml", []byte(reports))
	if err != nil {
		log.Fatal(err)
	}
	runner, err := schedule.New(schedule.Config{
		Redis: rdb, Client: queue.NewClient(rdb, queue.ClientConfig{}), Schedules: file.Schedules,
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runner.Run(ctx)
	}()
	stop() // when the process ends
	<-ended
	fmt.Println("stopped")
	// Output:
	// stopped
}
