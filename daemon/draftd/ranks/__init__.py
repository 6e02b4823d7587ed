"""A group of ranks without MLX: which there are (plan, hostfile), how they begin (handshake, calling, proof, joining,
ring_addresses), the connections between rank 0 and its followers (leader_channel, follower_channel, frames), and the
followers' processes (followers, follower, supervisor)."""
