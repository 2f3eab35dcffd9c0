// Command enqueue makes tasks for the workers: one outbound HTTP request, or a
// file of tasks. It also shows when recurring tasks come due. Run it with -h.
package main

import (
	"context"
	"io"
	"os"

	"github.com/headway-go/headway/cmd/internal/cli"
)

func main() {
	cli.RouteRedisLog(nil)
	os.Exit(run(cli.Interruptible(), os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

const enqueueLong = `enqueue puts tasks into queues. Workers run them under their limits.

A flag may begin with one dash or two. [NAME] is the environment variable that is read
if the flag is not given. If a flag may be repeated, its variable holds a list with commas.
If $TRACEPARENT is set, and $TRACESTATE, tasks carry this W3C trace context.

Results go to standard output, everything else to standard error. Exit codes: 0 done,
1 something failed, 2 bad usage, 130 interrupted.`

// run is the program. It returns its exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := cli.Group("enqueue", "Put tasks into queues", newHTTP(getenv), newBatch(getenv), newSchedules())
	root.Long, root.Version = enqueueLong, cli.Version()
	root.Example = `  enqueue http -scope payments/acme https://api.example.com/ping
  enqueue batch tasks.ndjson
  generate-tasks | enqueue batch -
  enqueue schedules schedules.yaml`
	root.SetIn(stdin)
	return cli.Execute(ctx, root, args, getenv, stdout, stderr)
}
