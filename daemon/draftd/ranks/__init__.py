"""A group of ranks, without MLX: which there are (plan, hostfile), how the group starts (handshake, form, join, proof,
environment, neighbours), the connections between rank 0 and its followers (leader_channel, follower_channel, frames,
watchdog), the followers' processes (followers, follower, supervisor), and a check of all this (doctor)."""
