// Package redishealth checks whether the Redis of a process answers, logs each change once, and keeps
// logs quiet during an outage, when each task would log the same line.
package redishealth
