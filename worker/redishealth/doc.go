// Package redishealth knows whether the Redis of a process answers, says so once for each change, and keeps logs quiet
// meanwhile: in an outage each task would bring the same line.
package redishealth
