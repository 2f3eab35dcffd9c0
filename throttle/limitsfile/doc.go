// Package limitsfile keeps the limits of one process: its limits.yaml, and the limits in Redis, which
// all processes share.
//
//	file, err := limitsfile.Read(ctx, "limits.yaml")
//	source := limitsfile.New(rdb, file, logger)
//	rules, err := source.Settle(ctx) // publishes the file
//	limiter, err := throttle.New(rdb, rules, throttle.Config{})
//	source.Attach(limiter)
//	go source.Follow(ctx, limiter, logger, nil)
//	go source.Reload(ctx, nil)
//
// Package worker does all of this for the server of an asynq app. A program that only reads a file
// needs limitsyaml.Load alone.
package limitsfile
